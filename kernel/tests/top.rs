//! The first rows of each group in an order, against a sort of all its rows.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::cmp::Ordering;
use std::sync::Arc;

use _kernel::layout::Layout;
use _kernel::time::Time;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, StructArray,
};
use arrow_schema::{DataType, Field};
use common::{Random, batch, combine};

type Row = (Option<i64>, Option<i64>, Option<String>);

fn layout(rows: &RecordBatch, op: &str) -> Result<Arc<Layout>, _kernel::error::Error> {
    let specs = [(op.to_owned(), vec![1], None)];
    Layout::new(rows.schema(), 1, &specs, Time::None).map(Arc::new)
}

fn structs(columns: Vec<(&str, ArrayRef)>) -> ArrayRef {
    let fields = columns.into_iter().map(|(name, column)| {
        let field = Field::new(name, column.data_type().clone(), true);
        (Arc::new(field), column)
    });
    Arc::new(StructArray::from(fields.collect::<Vec<_>>()))
}

fn input(keys: &[i64], rows: &[Row], with_text: bool) -> RecordBatch {
    let a: ArrayRef = Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>());
    let b: ArrayRef = Arc::new(rows.iter().map(|row| row.1).collect::<Int64Array>());
    let mut columns = vec![("a", a), ("b", b)];
    if with_text {
        let text = rows.iter().map(|row| row.2.as_deref());
        columns.push(("c", Arc::new(text.collect::<StringArray>())));
    }
    batch(vec![
        Arc::new(Int64Array::from(keys.to_vec())),
        structs(columns),
    ])
}

/// What Spark calls desc_nulls_last and so on.
fn compare<T: Ord>(a: &Option<T>, b: &Option<T>, descending: bool, nulls_first: bool) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) if descending => b.cmp(a),
        (Some(a), Some(b)) => a.cmp(b),
        (None, None) => Ordering::Equal,
        (None, Some(_)) if nulls_first => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) if nulls_first => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
    }
}

fn decoded(lists: &ArrayRef, group: usize, with_text: bool) -> Vec<Row> {
    let rows = lists.as_list::<i32>().value(group);
    let rows = rows.as_struct();
    let number = |column: usize, row: usize| {
        let numbers = rows.column(column).as_primitive::<Int64Type>();
        numbers.is_valid(row).then(|| numbers.value(row))
    };
    let text = |row: usize| {
        let texts = rows.column(2).as_string::<i32>();
        texts.is_valid(row).then(|| texts.value(row).to_owned())
    };
    (0..rows.len())
        .map(|row| {
            let text = if with_text { text(row) } else { None };
            (number(0, row), number(1, row), text)
        })
        .collect()
}

fn check(seed: u64, most: usize, with_text: bool, orders: [(bool, bool); 3]) {
    let mut random = Random(seed);
    let count = 1500;
    let keys: Vec<i64> = (0..count).map(|_| random.below(20) as i64).collect();
    let rows: Vec<Row> = (0..count)
        .map(|_| {
            let text = random.maybe(5).map(|i| "xy".repeat(i * 9));
            let (a, b) = (random.maybe(9), random.maybe(9));
            let number = |n: Option<usize>| n.map(|n| n as i64 - 4);
            (number(a), number(b), if with_text { text } else { None })
        })
        .collect();
    let batch = input(&keys, &rows, with_text);
    let columns = if with_text { 3 } else { 2 };
    let words: Vec<String> = orders[..columns]
        .iter()
        .map(|(descending, first)| {
            let direction = if *descending { "desc" } else { "asc" };
            format!(
                "{direction}_nulls_{}",
                if *first { "first" } else { "last" }
            )
        })
        .collect();
    let op = format!("top {most} 1 {}", words.join(" "));
    let found = combine(&layout(&batch, &op).unwrap(), &batch, &mut random).decode();
    assert_eq!(found.num_rows(), 20);
    let groups = found.column(0).as_primitive::<Int64Type>();
    for group in 0..found.num_rows() {
        let mut expected: Vec<Row> = (0..count)
            .filter(|row| keys[*row] == groups.value(group))
            .map(|row| rows[row].clone())
            .collect();
        expected.sort_by(|x, y| {
            compare(&x.0, &y.0, orders[0].0, orders[0].1)
                .then(compare(&x.1, &y.1, orders[1].0, orders[1].1))
                .then(compare(&x.2, &y.2, orders[2].0, orders[2].1))
        });
        expected.truncate(most);
        assert_eq!(decoded(found.column(1), group, with_text), expected);
    }
}

#[test]
fn the_first_rows_of_each_group_are_kept_in_order() {
    for (seed, most) in [1, 2, 10, 1000].into_iter().enumerate() {
        for with_text in [false, true] {
            for order in [(true, false), (false, true), (true, true), (false, false)] {
                check(
                    seed as u64,
                    most,
                    with_text,
                    [order, (true, false), (true, false)],
                );
                check(seed as u64, most, with_text, [(true, false), order, order]);
            }
        }
    }
}

#[test]
fn zeros_are_equal_and_nans_largest_where_rows_are_ordered_by_them() {
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN, 1.0]));
    let ties: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3, 4]));
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![7; 4]));
    let rows = batch(vec![keys, structs(vec![("x", floats), ("tie", ties)])]);
    let layout = layout(&rows, "top 4 1 desc_nulls_last desc_nulls_last").unwrap();
    let found = combine(&layout, &rows, &mut Random(1)).decode();
    let rows = found.column(1).as_list::<i32>().value(0);
    let ties = rows.as_struct().column(1).as_primitive::<Int64Type>();
    assert_eq!(ties.values(), &[3, 4, 2, 1]);
    let floats = rows.as_struct().column(0).as_primitive::<Float64Type>();
    assert!(floats.value(0).is_nan());
}

#[test]
fn lists_that_do_not_fit_the_layout_are_errors() {
    let rows = input(&[1], &[(Some(1), Some(2), Some("abc".to_owned()))], true);
    let layout = layout(
        &rows,
        "top 3 1 desc_nulls_last desc_nulls_last desc_nulls_last",
    )
    .unwrap();
    let mut combiner = _kernel::combiner::Combiner::new(Arc::clone(&layout), &[0], None).unwrap();
    combiner.push(&rows).unwrap();
    let (_, encoded) = combiner.drain().unwrap().remove(0);
    let good = encoded["value"].as_binary::<i32>().value(0).to_vec();
    let key = encoded["key"].as_fixed_size_binary().value(0).to_vec();
    let mut out = Vec::new();
    assert!(layout.merge_variable(&good, &good, &mut out).unwrap());
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x81;
        // Where bytes are wrong, a list may come out, but nothing panics.
        let _ = layout.merge_variable(&bad, &good, &mut out);
        let _ = layout.merge_variable(&good, &bad, &mut out);
        let _ = layout.decode(&[key.as_slice()], &[bad.as_slice()]);
        assert!(layout.merge_variable(&good[..at], &good, &mut out).is_err());
    }
}

#[test]
fn orders_that_make_no_sense_are_refused() {
    let rows = input(&[1], &[(Some(1), Some(2), None)], false);
    for op in [
        "top 0 1 asc_nulls_last asc_nulls_last",
        "top x 1 asc_nulls_last asc_nulls_last",
        "top 1 1 asc_nulls_last",
        "top 1 3 asc_nulls_last asc_nulls_last",
        "top 1 1 asc asc",
    ] {
        assert!(layout(&rows, op).is_err(), "{op}");
    }
    let numbers = batch(vec![
        Arc::new(Int64Array::from(vec![1])),
        Arc::new(Int64Array::from(vec![1])),
    ]);
    assert!(matches!(numbers.column(1).data_type(), DataType::Int64));
    assert!(layout(&numbers, "top 1 1 asc_nulls_last").is_err());
}
