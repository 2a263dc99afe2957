//! What lies on disk: a damaged file gives an error that names it, never wrong groups; reads cost what they should.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod store_support;

use std::sync::Arc;

use _kernel::error::{Error, Result};
use _kernel::hash::BUCKETS;
use _kernel::layout::Layout;
use _kernel::merge::merge_runs;
use _kernel::pack::{FORMAT_VERSION, PackWriter};
use _kernel::rows::{HashRange, RowShape};
use _kernel::run_writer::RunExtent;
use _kernel::slice::Change;
use _kernel::store::Store;
use store_support::*;

fn new_store(layout: &Arc<Layout>) -> Store {
    Store::new(Arc::clone(layout), 0, BUCKETS, 1 << 30).unwrap()
}

/// A pack with one run per slice: slice 0 with these keys, slice 1 with one.
fn small_pack(layout: &Arc<Layout>, path: &std::path::Path, keys: &[i64]) -> Vec<(i64, RunExtent)> {
    let mut store = new_store(layout);
    let mut rows: Vec<_> = pairs(layout, keys, keys)
        .into_iter()
        .map(|row| (0, row))
        .collect();
    rows.push((1, rows[0].1.clone()));
    store.change(&encode(layout, &rows), Change::Merge).unwrap();
    flush(&mut store, path)
}

/// All groups of the pack, through a store that has nothing in memory.
fn read_pack(
    layout: &Arc<Layout>,
    path: &std::path::Path,
    runs: &[(i64, RunExtent)],
) -> Result<Vec<Vec<u8>>> {
    let mut store = new_store(layout);
    let mut rows = Vec::new();
    for (slice, extent) in runs {
        let run = open_run(layout, path, *extent)?;
        store.restore(*slice, extent.rows, vec![Arc::new(run)])?;
        rows.extend(scan_all(&mut store, *slice)?);
    }
    Ok(rows)
}

fn check_names_file(error: &Error, path: &std::path::Path) {
    let named = error.to_string().contains(path.to_str().unwrap());
    assert!(named, "{error}");
}

fn every_damage_is_noticed(layout: &Arc<Layout>) {
    let scratch = Scratch::new();
    let path = scratch.file("whole");
    let runs = small_pack(layout, &path, &(0..9).collect::<Vec<_>>());
    let right = read_pack(layout, &path, &runs).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let damaged = scratch.file("damaged");
    let check = |bytes: &[u8], what: String| {
        std::fs::write(&damaged, bytes).unwrap();
        match read_pack(layout, &damaged, &runs) {
            Ok(rows) => assert_eq!(rows, right, "{what} gave wrong rows"),
            Err(error) => check_names_file(&error, &damaged),
        }
    };
    for at in 0..whole.len() {
        for flip in [0x01, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            check(&bytes, format!("byte {at} xor {flip}"));
        }
    }
    for length in 0..whole.len() {
        std::fs::write(&damaged, &whole[..length]).unwrap();
        let error = read_pack(layout, &damaged, &runs).unwrap_err();
        check_names_file(&error, &damaged);
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
    }
}

#[test]
fn every_flipped_byte_and_every_cut_is_noticed_in_fixed_rows() {
    every_damage_is_noticed(&fixed_layout());
}

#[test]
fn every_flipped_byte_and_every_cut_is_noticed_in_variable_rows() {
    every_damage_is_noticed(&variable_layout());
}

#[test]
fn a_flipped_byte_in_a_block_is_noticed_by_lookups_and_merges() {
    let layout = fixed_layout();
    let scratch = Scratch::new();
    let path = scratch.file("pack");
    let keys: Vec<_> = (0..2000).collect();
    let runs = small_pack(&layout, &path, &keys);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[2000] ^= 4;
    std::fs::write(&path, &bytes).unwrap();
    let run = Arc::new(open_run(&layout, &path, runs[0].1).unwrap());
    let mut store = new_store(&layout);
    store.restore(0, 2000, vec![Arc::clone(&run)]).unwrap();
    let rows: Vec<_> = pairs(&layout, &keys, &keys)
        .into_iter()
        .map(|row| (0, row))
        .collect();
    let batch = encode(&layout, &rows);
    check_names_file(&store.get(&batch).unwrap_err(), &path);
    check_names_file(&store.change(&batch, Change::Merge).unwrap_err(), &path);
    let mut writer = PackWriter::create(scratch.file("merged"), 8192).unwrap();
    let range = HashRange::of_buckets(0, BUCKETS).unwrap();
    let merged = merge_runs(
        RowShape::of(&layout),
        layout.fingerprint(),
        &[run],
        &mut writer,
        range,
        true,
    );
    check_names_file(&merged.unwrap_err(), &path);
}

#[test]
fn a_newer_format_is_told_from_damage() {
    let layout = fixed_layout();
    let scratch = Scratch::new();
    let path = scratch.file("pack");
    let runs = small_pack(&layout, &path, &[1, 2, 3]);
    let whole = std::fs::read(&path).unwrap();
    for version_at in [8, 12 + 8] {
        let mut bytes = whole.clone();
        bytes[version_at..version_at + 4].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
        std::fs::write(&path, &bytes).unwrap();
        let error = read_pack(&layout, &path, &runs).unwrap_err();
        assert!(
            matches!(error, Error::NewerFormat { found, .. } if found == FORMAT_VERSION + 1),
            "{error}"
        );
        check_names_file(&error, &path);
    }
}

#[test]
fn a_run_of_another_layout_is_refused() {
    let scratch = Scratch::new();
    let path = scratch.file("pack");
    let runs = small_pack(&fixed_layout(), &path, &[1, 2, 3]);
    let error = open_run(&expiring_layout(), &path, runs[0].1)
        .err()
        .unwrap();
    check_names_file(&error, &path);
}

#[test]
fn a_key_never_seen_costs_no_read_but_for_the_filters_mistakes() {
    let layout = fixed_layout();
    let scratch = Scratch::new();
    let path = scratch.file("pack");
    let runs = small_pack(&layout, &path, &(0..5000).collect::<Vec<_>>());
    let mut store = new_store(&layout);
    let run = Arc::new(open_run(&layout, &path, runs[0].1).unwrap());
    store.restore(0, 5000, vec![run]).unwrap();
    let unseen: Vec<_> = (10_000..15_000).collect();
    let rows: Vec<_> = pairs(&layout, &unseen, &unseen)
        .into_iter()
        .map(|row| (0, row))
        .collect();
    store
        .change(&encode(&layout, &rows), Change::Merge)
        .unwrap();
    let counters = store.stats().counters;
    assert_eq!(counters.gets, 5000);
    assert_eq!(counters.filter_negatives + counters.false_positives, 5000);
    assert!(counters.false_positives < 150, "{counters:?}");
    assert!(
        counters.block_reads <= counters.false_positives,
        "{counters:?}"
    );
    assert_eq!(store.slices(), [(0, 10_000)]);
}

#[test]
fn a_cold_key_costs_at_most_one_block_per_run() {
    let layout = fixed_layout();
    let scratch = Scratch::new();
    let mut store = new_store(&layout);
    let keys: Vec<_> = (0..3000).collect();
    let all: Vec<_> = pairs(&layout, &keys, &keys)
        .into_iter()
        .map(|row| (0, row))
        .collect();
    for part in 0..3 {
        let some: Vec<_> = all.iter().skip(part).step_by(2).cloned().collect();
        store
            .change(&encode(&layout, &some), Change::Merge)
            .unwrap();
        flush(&mut store, &scratch.file(format!("pack{part}")));
        store.commit().unwrap();
    }
    let (rows, runs) = (store.slices()[0].1, store.runs(0).unwrap().to_vec());
    assert_eq!(runs.len(), 3);
    for row in all.iter().step_by(37) {
        let mut cold = new_store(&layout);
        cold.restore(0, rows, runs.clone()).unwrap();
        let (_, exist) = cold
            .get(&encode(&layout, std::slice::from_ref(row)))
            .unwrap();
        assert!(exist.value(0));
        let counters = cold.stats().counters;
        assert!((1..=3).contains(&counters.block_reads), "{counters:?}");
        assert!(counters.read_bytes <= 3 * 5000, "{counters:?}");
    }
    let mut cold = new_store(&layout);
    cold.restore(0, rows, runs.clone()).unwrap();
    cold.get(&encode(&layout, &all)).unwrap();
    let blocks: usize = runs.iter().map(|run| run.blocks().len()).sum();
    assert!(cold.stats().counters.block_reads <= blocks as u64);
}

#[test]
fn merged_runs_keep_the_buckets_asked_for() {
    let layout = fixed_layout();
    let scratch = Scratch::new();
    let path = scratch.file("pack");
    let keys: Vec<_> = (0..3000).collect();
    let runs = small_pack(&layout, &path, &keys);
    let run = Arc::new(open_run(&layout, &path, runs[0].1).unwrap());
    let all = pairs(&layout, &keys, &keys);
    let (shape, fingerprint) = (RowShape::of(&layout), layout.fingerprint());
    for (first, end) in [(0, 1), (17, 1000), (4000, 4096), (0, 4096)] {
        let merged_path = scratch.file(format!("merged{first}"));
        let mut writer = PackWriter::create(&merged_path, 100).unwrap();
        let range = HashRange::of_buckets(first, end).unwrap();
        let extent = merge_runs(
            shape,
            fingerprint,
            &[Arc::clone(&run)],
            &mut writer,
            range,
            true,
        )
        .unwrap();
        writer.finish().unwrap();
        let right = all
            .iter()
            .filter(|row| (first..end).contains(&_kernel::hash::bucket(row.hash)))
            .count();
        assert_eq!(extent.rows, right as u64);
        let rows = read_pack(&layout, &merged_path, &[(0, extent)]).unwrap();
        assert_eq!(rows.len(), right);
    }
}

#[test]
fn a_pack_without_runs_leaves_no_file_and_a_finished_one_is_closed() {
    let scratch = Scratch::new();
    let path = scratch.file("pack");
    let mut writer = PackWriter::create(&path, 8192).unwrap();
    assert!(path.exists());
    assert_eq!(writer.finish().unwrap(), 0);
    assert!(!path.exists());
    assert!(writer.finish().is_err());
    assert!(writer.write(b"late").is_err());
    drop(PackWriter::create(&path, 8192).unwrap());
    assert!(!path.exists(), "a writer given up takes its file with it");
    let layout = fixed_layout();
    small_pack(&layout, &path, &[1]);
    assert!(path.exists());
}
