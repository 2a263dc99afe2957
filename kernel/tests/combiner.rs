//! Where the combiner puts rows: groups, shards, slices, and which it leaves out.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use _kernel::combiner::Combiner;
use _kernel::hash::bucket;
use _kernel::layout::{EncodedRows, Layout};
use _kernel::time::Time;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray};
use common::{Merged, Random, batch};

fn layout(rows: &RecordBatch, keys: usize, ops: &[(&str, &[usize])], time: Time) -> Arc<Layout> {
    let specs: Vec<_> = ops
        .iter()
        .map(|(op, inputs)| (op.to_string(), inputs.to_vec(), None))
        .collect();
    Arc::new(Layout::new(rows.schema(), keys, &specs, time).unwrap())
}

fn longs(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

/// Rows for each decoded (slice, key), summed over all encoded rows.
fn counts(layout: &Arc<Layout>, drained: &[(usize, RecordBatch)]) -> BTreeMap<(i64, i64), i64> {
    let mut merged = Merged::new(layout);
    for (_, batch) in drained {
        merged.merge(batch).unwrap();
    }
    let decoded = merged.decode();
    let keys = decoded.column(0).as_primitive::<Int64Type>();
    let counts = decoded.column(1).as_primitive::<Int64Type>();
    let slices = merged.slices.iter().copied();
    let groups = slices.zip(keys.values().iter().copied());
    groups.zip(counts.values().iter().copied()).collect()
}

#[test]
fn few_groups_are_combined_and_many_are_passed_on() {
    for (keys, combined) in [(100, true), (1_000_000_000, false)] {
        let mut random = Random(5);
        let rows = batch(vec![longs((0..200_000).map(|_| random.below(keys) as i64))]);
        let layout = layout(&rows, 1, &[("count", &[])], Time::None);
        let mut combiner = Combiner::new(Arc::clone(&layout), &[0, 2048], None).unwrap();
        combiner.push(&rows).unwrap();
        assert!(combiner.memory_bytes() > 0);
        let drained = combiner.drain().unwrap();
        let encoded: usize = drained.iter().map(|(_, batch)| batch.num_rows()).sum();
        if combined {
            assert_eq!(encoded, keys);
        } else {
            assert!(encoded > 190_000, "{encoded}");
        }
        let counted = counts(&layout, &drained);
        assert_eq!(counted.values().sum::<i64>(), 200_000);
        assert!(combiner.drain().unwrap().is_empty());
    }
}

#[test]
fn rows_go_to_the_shard_of_their_bucket_in_order_of_arrival() {
    let starts = [0, 1, 700, 4095];
    let rows = batch(vec![
        longs((0..100_000).map(|i| i % 50_000)),
        longs(0..100_000),
    ]);
    let layout = layout(&rows, 1, &[("last", &[1])], Time::None);
    let mut combiner = Combiner::new(Arc::clone(&layout), &starts, None).unwrap();
    combiner.push(&rows).unwrap();
    let drained = combiner.drain().unwrap();
    let mut merged = Merged::new(&layout);
    for (shard, batch) in &drained {
        let hashes = batch.column(0).as_primitive::<UInt64Type>();
        let end = starts.get(shard + 1).copied().unwrap_or(4096);
        for hash in hashes.values() {
            assert!((starts[*shard]..end).contains(&bucket(*hash)));
        }
        merged.merge(batch).unwrap();
    }
    let decoded = merged.decode();
    assert_eq!(decoded.num_rows(), 50_000);
    let (keys, last) = (decoded.column(0), decoded.column(1));
    let keys = keys.as_primitive::<Int64Type>().values().iter();
    let last = last.as_primitive::<Int64Type>().values().iter();
    assert!(keys.zip(last).all(|(key, last)| *last == key + 50_000));
}

#[test]
fn rows_fall_into_panes_and_late_ones_are_left_out() {
    let times: ArrayRef = Arc::new(Int64Array::from(vec![
        Some(-1),
        Some(0),
        Some(4),
        Some(5),
        Some(14),
        None,
        Some(-30),
    ]));
    let rows = batch(vec![longs([1; 7]), times]);
    let time = Time::Panes {
        column: 1,
        size: 25,
        slide: 10,
        offset: 0,
    };
    let layout = layout(&rows, 1, &[("count", &[])], time);
    let mut combiner = Combiner::new(Arc::clone(&layout), &[0], Some(-5)).unwrap();
    combiner.push(&rows).unwrap();
    assert_eq!((combiner.rows(), combiner.late_rows()), (7, 1));
    let counted = counts(&layout, &combiner.drain().unwrap());
    let expected = [((-5, 1), 1), ((0, 1), 2), ((5, 1), 1), ((10, 1), 1)];
    assert_eq!(counted, expected.into());
}

#[test]
fn keyed_rows_carry_their_expiry_and_share_slices() {
    let expiries = vec![Some(1), Some(10), Some(11), None, Some(-3), Some(0)];
    let rows = batch(vec![
        longs(0..6),
        Arc::new(Int64Array::from(expiries.clone())),
    ]);
    let time = Time::Keyed {
        column: 1,
        slice: 10,
    };
    let layout = layout(&rows, 1, &[("count", &[])], time);
    let mut combiner = Combiner::new(Arc::clone(&layout), &[0], Some(0)).unwrap();
    combiner.push(&rows).unwrap();
    assert_eq!(combiner.late_rows(), 2);
    let drained = combiner.drain().unwrap();
    let mut merged = Merged::new(&layout);
    for (_, batch) in &drained {
        merged.merge(batch).unwrap();
    }
    assert_eq!(merged.slices, [10, 10, 20, i64::MAX]);
    assert_eq!(merged.expiries(), expiries[..4]);
    assert_eq!(merged.decode().column(0).to_data(), longs(0..4).to_data());
}

#[test]
fn late_rows_are_left_out_after_combining_has_stopped() {
    let rows = 100_000;
    let time = Time::Panes {
        column: 1,
        size: 10,
        slide: 10,
        offset: 0,
    };
    for text_keys in [false, true] {
        let numbers = longs(0..rows);
        let keys: ArrayRef = match text_keys {
            true => Arc::new(StringArray::from_iter_values(
                (0..rows).map(|i| i.to_string()),
            )),
            false => numbers,
        };
        let rows = batch(vec![keys, longs((0..rows).map(|i| i % 2 * 10))]);
        let layout = layout(&rows, 1, &[("count", &[]), ("max", &[0])], time);
        let mut combiner = Combiner::new(Arc::clone(&layout), &[0, 9], Some(10)).unwrap();
        combiner.push(&rows).unwrap();
        assert_eq!(combiner.late_rows(), 50_000);
        let mut merged = Merged::new(&layout);
        for (_, batch) in combiner.drain().unwrap() {
            merged.merge(&batch).unwrap();
        }
        let decoded = merged.decode();
        assert_eq!(decoded.num_rows(), 50_000);
        assert_eq!(decoded.column(0).to_data(), decoded.column(2).to_data());
        assert!(merged.slices.iter().all(|slice| *slice == 10));
    }
}

#[test]
fn groups_without_aggregates_or_keys_are_kept() {
    let rows = batch(vec![longs([3, 1, 3])]);
    for (keys, expected) in [(1, 2), (0, 1)] {
        let layout = layout(&rows, keys, &[], Time::None);
        let mut combiner = Combiner::new(Arc::clone(&layout), &[0, 2], None).unwrap();
        combiner.push(&rows).unwrap();
        let mut merged = Merged::new(&layout);
        for (_, batch) in combiner.drain().unwrap() {
            merged.merge(&batch).unwrap();
        }
        let decoded = merged.decode();
        assert_eq!(
            (decoded.num_rows(), decoded.num_columns()),
            (expected, keys)
        );
    }
}

#[test]
fn batches_of_other_columns_are_refused() {
    let rows = batch(vec![longs([1])]);
    let layout = layout(&rows, 1, &[("count", &[])], Time::None);
    let mut combiner = Combiner::new(layout, &[0], None).unwrap();
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    let error = combiner.push(&batch(vec![texts])).unwrap_err();
    assert!(error.to_string().contains("Utf8"), "{error}");
    assert!(combiner.push(&batch(vec![longs([1]), longs([1])])).is_err());
}

#[test]
fn shards_must_begin_at_bucket_zero_and_rise() {
    let rows = batch(vec![longs([1])]);
    let layout = layout(&rows, 1, &[], Time::None);
    for starts in [&[][..], &[1], &[0, 0], &[0, 5, 4], &[0, 4096]] {
        assert!(
            Combiner::new(Arc::clone(&layout), starts, None).is_err(),
            "{starts:?}"
        );
    }
}

#[test]
fn damaged_encoded_rows_are_errors() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["some text", "another"]));
    let rows = batch(vec![texts, longs([1, 2])]);
    let ops: &[(&str, &[usize])] = &[("min", &[0]), ("sum_int", &[1]), ("first", &[0])];
    let layout = layout(&rows, 1, ops, Time::None);
    let mut combiner = Combiner::new(Arc::clone(&layout), &[0], None).unwrap();
    combiner.push(&rows).unwrap();
    let (_, encoded) = combiner.drain().unwrap().remove(0);
    let good = EncodedRows::new(&layout, &encoded).unwrap();
    let (key, value) = (good.key(0).to_vec(), good.value(0).to_vec());
    assert!(layout.decode(&[&key], &[&value]).is_ok());

    // Cut short, made longer, or with any byte changed: an answer or an error, never a panic.
    let mut out = Vec::new();
    for length in 0..key.len() {
        assert!(layout.decode(&[&key[..length]], &[&value]).is_err());
    }
    for length in 0..value.len() {
        assert!(layout.decode(&[&key], &[&value[..length]]).is_err());
        assert!(
            layout
                .merge_variable(&value, &value[..length], &mut out)
                .is_err()
        );
        assert!(
            layout
                .merge_variable(&value[..length], &value, &mut out)
                .is_err()
        );
        assert!(
            layout
                .merge_fixed(&mut value.clone(), &value[..length])
                .is_err()
        );
    }
    let longer = [&value[..], b"?"].concat();
    assert!(layout.decode(&[&key], &[&longer]).is_err());
    assert!(layout.merge_variable(&longer, &value, &mut out).is_err());
    let mut random = Random(8);
    for _ in 0..2000 {
        let (mut key, mut value) = (key.clone(), value.clone());
        let at = random.below(key.len());
        key[at] ^= 1 << random.below(8);
        let at = random.below(value.len());
        value[at] ^= 1 << random.below(8);
        let _ = layout.decode(&[&key], &[&value]);
        let _ = layout.merge_variable(&value, good.value(1), &mut out);
    }
}

#[test]
fn encoded_rows_of_another_layout_are_refused() {
    let rows = batch(vec![longs([1]), longs([1])]);
    let one = layout(&rows, 1, &[("count", &[])], Time::None);
    let two = layout(&rows, 2, &[("count", &[])], Time::None);
    let mut combiner = Combiner::new(one, &[0], None).unwrap();
    combiner.push(&rows).unwrap();
    let (_, encoded) = combiner.drain().unwrap().remove(0);
    let error = EncodedRows::new(&two, &encoded).unwrap_err();
    assert!(
        error.to_string().contains("key FixedSizeBinary(18)"),
        "{error}"
    );
}

#[test]
fn the_fingerprint_depends_on_what_decides_the_bytes() {
    let rows = batch(vec![longs([1]), longs([1])]);
    let print = |keys, ops: &[(&str, &[usize])], time| layout(&rows, keys, ops, time).fingerprint();
    let base = print(1, &[("count", &[])], Time::None);
    let keyed = Time::Keyed {
        column: 1,
        slice: 10,
    };
    assert_eq!(base, print(1, &[("count", &[1])], Time::None));
    assert_ne!(base, print(2, &[("count", &[])], Time::None));
    assert_ne!(base, print(1, &[("sum_int", &[1])], Time::None));
    assert_ne!(base, print(1, &[("count", &[])], keyed));
    // Written down, so that a change to it is seen: it would make kept state unreadable.
    assert_eq!(base, 737_449_504_434_302_196);
}
