//! Combining, merging and decoding give what a straightforward computation gives, for every aggregate and type.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::sync::Arc;

use _kernel::error::Error;
use _kernel::layout::Layout;
use _kernel::time::Time;
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Float64Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int8Array, Int16Array,
    Int32Array, Int64Array, RecordBatch, StringArray,
};
use common::{Merged, Random, batch, combine, places_in, pools, take};

type Places = Vec<Option<usize>>;

const ROWS: usize = 1500;

fn layout(rows: &RecordBatch, ops: &[(&str, &[usize], Option<usize>)]) -> Arc<Layout> {
    Arc::new(try_layout(rows, 1, ops).unwrap())
}

fn try_layout(
    rows: &RecordBatch,
    keys: usize,
    ops: &[(&str, &[usize], Option<usize>)],
) -> Result<Layout, Error> {
    let specs: Vec<_> = ops
        .iter()
        .map(|(op, inputs, filter)| (op.to_string(), inputs.to_vec(), *filter))
        .collect();
    Layout::new(rows.schema(), keys, &specs, Time::None)
}

fn random_places(random: &mut Random, pool: usize) -> Places {
    (0..ROWS).map(|_| random.maybe(pool)).collect()
}

/// The rows of each group in order, for groups in the order of the decoded keys.
fn grouped(keys: &Places, decoded: &Places) -> Vec<Vec<usize>> {
    let rows = |key: &Option<usize>| (0..keys.len()).filter(|row| keys[*row] == *key).collect();
    let mut seen: Vec<_> = decoded.clone();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), decoded.len(), "one group for each key");
    let mut expected = keys.clone();
    expected.sort_unstable();
    expected.dedup();
    assert_eq!(seen, expected, "the keys of the rows");
    decoded.iter().map(rows).collect()
}

fn assert_column(decoded: &RecordBatch, name: &str, expected: &ArrayRef) {
    let column = decoded.column_by_name(name).unwrap();
    assert_eq!(column.data_type(), expected.data_type());
    assert_eq!(column.to_data(), expected.to_data(), "{name}");
}

fn bools(values: impl Iterator<Item = bool>) -> ArrayRef {
    Arc::new(BooleanArray::from(values.collect::<Vec<_>>()))
}

#[test]
fn values_of_every_type_are_kept_as_key_first_last_and_by_order() {
    let mut random = Random(1);
    for pool in pools() {
        let keys = random_places(&mut random, pool.values.len());
        let values = random_places(&mut random, pool.values.len());
        let orders = random_places(&mut random, 5);
        let order_pool: ArrayRef = Arc::new(Int64Array::from(vec![-9, -1, 0, 5, 7]));
        let rows = batch(vec![
            take(&pool.values, &keys),
            take(&pool.values, &values),
            take(&order_pool, &orders),
        ]);
        let layout = layout(
            &rows,
            &[
                ("first", &[1], None),
                ("last", &[1], None),
                ("first_non_null", &[1], None),
                ("last_non_null", &[1], None),
                ("min_by", &[1, 2], None),
                ("max_by", &[1, 2], None),
            ],
        );
        let decoded = combine(&layout, &rows, &mut random).decode();
        assert_eq!(decoded.schema(), layout.output_schema());
        assert_eq!(decoded.schema().field(0), rows.schema().field(0));
        let groups = grouped(&keys, &places_in(&pool.values, decoded.column(0)));
        let column = |pick: &dyn Fn(&[usize]) -> Option<usize>| {
            take(
                &pool.values,
                &groups.iter().map(|rows| pick(rows)).collect::<Vec<_>>(),
            )
        };
        let first = |rows: &[usize]| values[rows[0]];
        let last = |rows: &[usize]| values[rows[rows.len() - 1]];
        let first_value = |rows: &[usize]| rows.iter().find_map(|row| values[*row]);
        let last_value = |rows: &[usize]| rows.iter().rev().find_map(|row| values[*row]);
        let has_value = |rows: &Vec<usize>| first_value(rows).is_some();
        assert_column(&decoded, "b0", &column(&first));
        assert_column(&decoded, "b1", &bools(groups.iter().map(|_| true)));
        assert_column(&decoded, "b2", &column(&last));
        assert_column(&decoded, "b4", &column(&first_value));
        assert_column(&decoded, "b5", &bools(groups.iter().map(has_value)));
        assert_column(&decoded, "b6", &column(&last_value));
        let at = |extreme: Option<usize>, rows: &[usize]| {
            let row = rows
                .iter()
                .rev()
                .find(|row| extreme.is_some() && orders[**row] == extreme);
            row.and_then(|row| values[*row])
        };
        let least = |rows: &[usize]| rows.iter().filter_map(|row| orders[*row]).min();
        let largest = |rows: &[usize]| rows.iter().filter_map(|row| orders[*row]).max();
        assert_column(&decoded, "b8", &column(&|rows| at(least(rows), rows)));
        assert_column(&decoded, "b10", &column(&|rows| at(largest(rows), rows)));
        let orders: Places = groups.iter().map(|rows| largest(rows)).collect();
        assert_column(&decoded, "b11", &take(&order_pool, &orders));
    }
}

#[test]
fn extremes_of_every_ordered_type_follow_its_order() {
    let mut random = Random(2);
    for pool in pools() {
        let keys = random_places(&mut random, 40);
        let values = random_places(&mut random, pool.values.len());
        let flags: Places = random_places(&mut random, 2);
        let flag_pool: ArrayRef = Arc::new(BooleanArray::from(vec![false, true]));
        let key_pool: ArrayRef = Arc::new(Int32Array::from_iter_values(0..40));
        let rows = batch(vec![
            take(&key_pool, &keys),
            take(&pool.values, &values),
            take(&flag_pool, &flags),
        ]);
        let ops: &[(&str, &[usize], Option<usize>)] = &[
            ("min", &[1], None),
            ("max", &[1], Some(2)),
            ("max_by", &[0, 1], Some(2)),
        ];
        if !pool.ordered {
            let error = try_layout(&rows, 1, ops).unwrap_err();
            assert!(matches!(error, Error::Invalid(_)));
            assert!(error.to_string().contains("min: "), "{error}");
            continue;
        }
        let decoded = combine(&layout(&rows, ops), &rows, &mut random).decode();
        let groups = grouped(&keys, &places_in(&key_pool, decoded.column(0)));
        let least = |rows: &Vec<usize>| rows.iter().filter_map(|row| values[*row]).min();
        let kept = |row: &usize| flags[*row] == Some(1);
        let largest = |rows: &Vec<usize>| {
            let rows = rows.iter().copied().filter(kept);
            rows.filter_map(|row| values[row]).max()
        };
        let by = |rows: &Vec<usize>| {
            let extreme = largest(rows);
            let mut rows = rows.iter().copied().filter(kept);
            rows.find(|row| extreme.is_some() && values[*row] == extreme)
                .and_then(|row| keys[row])
        };
        let column = |pool: &ArrayRef, places: Places| take(pool, &places);
        assert_column(
            &decoded,
            "b0",
            &column(&pool.values, groups.iter().map(least).collect()),
        );
        assert_column(
            &decoded,
            "b1",
            &column(&pool.values, groups.iter().map(largest).collect()),
        );
        assert_column(
            &decoded,
            "b2",
            &column(&key_pool, groups.iter().map(by).collect()),
        );
        assert_column(
            &decoded,
            "b3",
            &column(&pool.values, groups.iter().map(largest).collect()),
        );
    }
}

#[test]
fn numbers_are_counted_summed_and_combined_bit_by_bit() {
    let mut random = Random(3);
    let keys = random_places(&mut random, 300);
    let longs: Vec<Option<i64>> = (0..ROWS)
        .map(|_| random.maybe(1000).map(|v| v as i64 - 500))
        .collect();
    let doubles: Vec<Option<f64>> = (0..ROWS)
        .map(|_| random.maybe(1000).map(|v| v as f64 / 4.0 - 99.0))
        .collect();
    let decimals: Vec<Option<i128>> = (0..ROWS)
        .map(|_| random.maybe(9000).map(|v| v as i128 - 4500))
        .collect();
    let key_pool: ArrayRef = Arc::new(Int64Array::from_iter_values(0..300));
    let rows = batch(vec![
        take(&key_pool, &keys),
        Arc::new(Int64Array::from(longs.clone())),
        Arc::new(Float64Array::from(doubles.clone())),
        Arc::new(
            Decimal128Array::from(decimals.clone())
                .with_precision_and_scale(5, 2)
                .unwrap(),
        ),
        Arc::new(Int8Array::from_iter(
            longs.iter().map(|v| v.map(|v| v as i8)),
        )),
        Arc::new(Int16Array::from_iter(
            longs.iter().map(|v| v.map(|v| v as i16)),
        )),
        Arc::new(Int32Array::from_iter(
            longs.iter().map(|v| v.map(|v| v as i32)),
        )),
    ]);
    let layout = layout(
        &rows,
        &[
            ("count", &[], None),
            ("count", &[1, 2], None),
            ("sum_int", &[1], None),
            ("sum_int_wrapping", &[1], None),
            ("sum_int_try", &[1], None),
            ("sum_float", &[2], None),
            ("sum_decimal", &[3], None),
            ("bit_and", &[4], None),
            ("bit_or", &[5], None),
            ("bit_xor", &[6], None),
            ("bit_xor", &[1], None),
            ("moments", &[2], None),
        ],
    );
    let decoded = combine(&layout, &rows, &mut random).decode();
    let groups = grouped(&keys, &places_in(&key_pool, decoded.column(0)));
    for (i, rows) in groups.iter().enumerate() {
        let long = |name: &str| {
            let column = decoded
                .column_by_name(name)
                .unwrap()
                .as_primitive::<Int64Type>();
            column.is_valid(i).then(|| column.value(i))
        };
        let double = |name: &str| {
            let column = decoded
                .column_by_name(name)
                .unwrap()
                .as_primitive::<Float64Type>();
            column.is_valid(i).then(|| column.value(i))
        };
        let flag = |name: &str| decoded.column_by_name(name).unwrap().as_boolean().value(i);
        assert_eq!(long("b0"), Some(rows.len() as i64));
        let both = |row: &&usize| longs[**row].is_some() && doubles[**row].is_some();
        assert_eq!(long("b1"), Some(rows.iter().filter(both).count() as i64));
        let numbers: Vec<i64> = rows.iter().filter_map(|row| longs[*row]).collect();
        let sum = (!numbers.is_empty()).then(|| numbers.iter().sum::<i64>());
        assert_eq!((long("b2"), long("b3"), long("b4")), (sum, sum, sum));
        assert_eq!(flag("b5"), numbers.is_empty());
        let floats: Vec<f64> = rows.iter().filter_map(|row| doubles[*row]).collect();
        let sum = (!floats.is_empty()).then(|| floats.iter().sum::<f64>());
        assert_eq!(double("b6"), sum);
        let exact: Vec<i128> = rows.iter().filter_map(|row| decimals[*row]).collect();
        let overflows = running(&exact).any(|sum| sum.abs() >= 100_000);
        let column = decoded
            .column_by_name("b7")
            .unwrap()
            .as_primitive::<Decimal128Type>();
        assert_eq!(column.data_type(), rows_type(&layout, 3));
        if !overflows {
            let sum = (!exact.is_empty()).then(|| exact.iter().sum::<i128>());
            assert_eq!(column.is_valid(i).then(|| column.value(i)), sum);
        }
        assert_eq!(flag("b8"), exact.is_empty());
        let small = |name: &str| {
            let column = decoded.column_by_name(name).unwrap();
            column.is_valid(i).then(|| match name {
                "b9" => i64::from(
                    column
                        .as_primitive::<arrow_array::types::Int8Type>()
                        .value(i),
                ),
                "b10" => i64::from(
                    column
                        .as_primitive::<arrow_array::types::Int16Type>()
                        .value(i),
                ),
                _ => i64::from(
                    column
                        .as_primitive::<arrow_array::types::Int32Type>()
                        .value(i),
                ),
            })
        };
        let bits = |op: fn(i64, i64) -> i64| numbers.iter().copied().reduce(op);
        assert_eq!(small("b9"), bits(|a, b| a & b).map(|b| i64::from(b as i8)));
        assert_eq!(small("b10"), bits(|a, b| a | b));
        assert_eq!(small("b11"), bits(|a, b| a ^ b));
        assert_eq!(long("b12"), bits(|a, b| a ^ b));
        let n = floats.len() as f64;
        let mean = if n == 0.0 {
            0.0
        } else {
            floats.iter().sum::<f64>() / n
        };
        let m2: f64 = floats.iter().map(|v| (v - mean) * (v - mean)).sum();
        assert_eq!(double("b13"), Some(n));
        assert!((double("b14").unwrap() - mean).abs() < 1e-9);
        assert!((double("b15").unwrap() - m2).abs() < 1e-6 * (1.0 + m2));
    }
}

fn running(numbers: &[i128]) -> impl Iterator<Item = i128> {
    numbers.iter().scan(0, |sum, number| {
        *sum += number;
        Some(*sum)
    })
}

fn rows_type(layout: &Layout, column: usize) -> &'static arrow_schema::DataType {
    // The schemas of tests are few and small.
    Box::leak(Box::new(
        layout.input_schema().field(column).data_type().clone(),
    ))
}

fn one_group(columns: Vec<ArrayRef>, ops: &[(&str, &[usize], Option<usize>)]) -> RecordBatch {
    let rows = batch(columns);
    let layout = Arc::new(try_layout(&rows, 0, ops).unwrap());
    combine(&layout, &rows, &mut Random(9)).decode()
}

#[test]
fn integer_sums_beyond_their_range_fail_wrap_or_become_null() {
    let longs: ArrayRef = Arc::new(Int64Array::from(vec![i64::MAX, 1, 5]));
    let decoded = one_group(
        vec![Arc::clone(&longs)],
        &[
            ("sum_int_wrapping", &[0], None),
            ("sum_int_try", &[0], None),
        ],
    );
    assert_column(
        &decoded,
        "b0",
        &(Arc::new(Int64Array::from(vec![i64::MIN + 5])) as ArrayRef),
    );
    assert_column(
        &decoded,
        "b1",
        &(Arc::new(Int64Array::from(vec![None])) as ArrayRef),
    );
    assert_column(&decoded, "b2", &bools([false].into_iter()));

    let rows = batch(vec![longs]);
    let layout = Arc::new(try_layout(&rows, 0, &[("sum_int", &[0], None)]).unwrap());
    let mut combiner = _kernel::combiner::Combiner::new(layout, &[0], None).unwrap();
    let error = combiner.push(&rows).unwrap_err();
    assert!(matches!(&error, Error::Overflow(what) if what == "long overflow"));
}

#[test]
fn decimal_sums_beyond_their_precision_stay_null() {
    let decimals = |values: Vec<i128>, precision| -> ArrayRef {
        let values = Decimal128Array::from(values).with_precision_and_scale(precision, 0);
        Arc::new(values.unwrap())
    };
    for (values, precision) in [
        (vec![99, 1, -50, 0], 2),
        (vec![10_i128.pow(38) - 1, 10_i128.pow(38) - 1, -5, 0], 38),
    ] {
        let decoded = one_group(
            vec![decimals(values, precision)],
            &[("sum_decimal", &[0], None)],
        );
        assert_eq!(decoded.column(0).null_count(), 1);
        assert_column(&decoded, "b1", &bools([false].into_iter()));
    }
}

#[test]
fn any_nan_is_the_largest_and_zeros_inside_have_no_sign() {
    let negative_nan = f64::from_bits(f64::NAN.to_bits() | 1 << 63 | 1);
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.0, negative_nan, f64::INFINITY]));
    let decoded = one_group(vec![floats], &[("min", &[0], None), ("max", &[0], None)]);
    let value = |i: usize| decoded.column(i).as_primitive::<Float64Type>().value(0);
    assert_eq!(value(0), 1.0);
    assert!(value(1).is_nan());

    let pair = |first: Vec<f64>, second: Vec<i64>| -> ArrayRef {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("f", Arc::new(Float64Array::from(first))),
            ("i", Arc::new(Int64Array::from(second))),
        ];
        Arc::new(arrow_array::StructArray::try_from(columns).unwrap())
    };
    let pairs = pair(vec![-0.0, 0.0, 0.0], vec![1, 3, 2]);
    let decoded = one_group(vec![pairs], &[("max", &[0], None), ("min", &[0], None)]);
    assert_column(&decoded, "b0", &pair(vec![0.0], vec![3]));
    assert_column(&decoded, "b1", &pair(vec![0.0], vec![1]));
}

#[test]
fn groups_that_saw_no_value_are_empty() {
    let nulls: ArrayRef = Arc::new(Int64Array::from(vec![None]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec![None::<&str>]));
    let decoded = one_group(
        vec![nulls, texts],
        &[
            ("count", &[0], None),
            ("sum_int_try", &[0], None),
            ("min", &[1], None),
            ("first", &[1], None),
            ("first_non_null", &[1], None),
        ],
    );
    let text: ArrayRef = Arc::new(StringArray::from(vec![None::<&str>]));
    assert_column(
        &decoded,
        "b0",
        &(Arc::new(Int64Array::from(vec![0])) as ArrayRef),
    );
    assert_column(
        &decoded,
        "b1",
        &(Arc::new(Int64Array::from(vec![None])) as ArrayRef),
    );
    assert_column(&decoded, "b2", &bools([true].into_iter()));
    assert_column(&decoded, "b3", &text);
    assert_column(&decoded, "b5", &bools([true].into_iter()));
    assert_column(&decoded, "b7", &bools([false].into_iter()));
}

#[test]
fn the_identity_is_the_empty_group_and_changes_nothing() {
    let rows = batch(vec![Arc::new(Int64Array::from(vec![4, 5])) as ArrayRef]);
    let ops: &[(&str, &[usize], Option<usize>)] = &[("count", &[], None), ("max", &[0], None)];
    let layout = Arc::new(try_layout(&rows, 0, ops).unwrap());
    let mut merged = Merged::new(&layout);
    merged.merge(&layout.identity().unwrap()).unwrap();
    let empty = merged.decode();
    assert_eq!(empty.column(0).as_primitive::<Int64Type>().value(0), 0);
    assert!(empty.column(1).is_null(0));

    let mut combiner = _kernel::combiner::Combiner::new(Arc::clone(&layout), &[0], None).unwrap();
    combiner.push(&rows).unwrap();
    for (_, batch) in combiner.drain().unwrap() {
        merged.merge(&batch).unwrap();
    }
    merged.merge(&layout.identity().unwrap()).unwrap();
    let decoded = merged.decode();
    assert_eq!(decoded.num_rows(), 1);
    assert_eq!(decoded.column(0).as_primitive::<Int64Type>().value(0), 2);
    assert_eq!(decoded.column(1).as_primitive::<Int64Type>().value(0), 5);
    assert!(try_layout(&rows, 1, &[]).unwrap().identity().is_err());
}
