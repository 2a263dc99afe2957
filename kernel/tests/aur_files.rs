//! Rows of sessions on disk: a damaged file gives an error that names it, never wrong rows.
#![allow(clippy::unwrap_used, reason = "tests")]

mod aur_support;

use _kernel::aur::layout::Ending;
use _kernel::error::{Error, Result};
use aur_support::*;

fn read_all(shard: &mut Shard) -> Result<Closed> {
    shard.restart()?;
    shard.take(1_000, 7)
}

fn every_damage_is_noticed(shape: Shape) {
    let mut shard = Shard::new(shape, 1 << 30);
    shard.batch(&[(1, 7, 0), (2, 8, 5), (1, 9, 3)], 0);
    shard.batch(&[(3, 10, 12), (2, 11, 9)], 0);
    let runs = shard.runs();
    let rewritten = shard.rewrite(0, runs, 0.0);
    shard.adopt(0, runs, rewritten);
    let right = read_all(&mut shard).unwrap();
    assert_eq!(right.len(), 3);
    let path = shard.files().remove(0);
    let whole = std::fs::read(&path).unwrap();
    let mut check = |bytes: &[u8], what: String| -> std::result::Result<(), Error> {
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, bytes).unwrap();
        match read_all(&mut shard) {
            Ok(rows) => {
                assert_eq!(rows, right, "{what} gave wrong rows");
                Ok(())
            }
            Err(error) => {
                let named = error.to_string().contains(path.to_str().unwrap());
                assert!(named, "{what}: {error}");
                Err(error)
            }
        }
    };
    for at in 0..whole.len() {
        for flip in [0x01, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            let _ = check(&bytes, format!("byte {at} xor {flip}"));
        }
    }
    for length in 0..whole.len() {
        check(&whole[..length], format!("cut at {length}")).unwrap_err();
    }
}

#[test]
fn damage_to_rows_of_fixed_length_is_noticed() {
    every_damage_is_noticed(Shape::Numbers);
}

#[test]
fn damage_to_rows_of_variable_length_is_noticed() {
    every_damage_is_noticed(Shape::Texts);
}

#[test]
fn a_run_of_another_gap_is_refused() {
    let mut shard = Shard::new(Shape::Numbers, 1 << 30);
    shard.batch(&[(1, 7, 0)], 0);
    shard.layout = layout(Shape::Texts, Ending::Gap(GAP), None);
    let error = read_all(&mut shard).unwrap_err();
    assert!(
        error.to_string().contains("was written for other"),
        "{error}"
    );
}
