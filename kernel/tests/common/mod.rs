//! Values of every type in their order, a fixed-seed generator, and a store that only merges.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests"
)]

use std::collections::HashMap;
use std::sync::Arc;

use _kernel::combiner::Combiner;
use _kernel::layout::{EncodedRows, Layout};
use arrow_array::builder::{Int32Builder, Int64Builder, ListBuilder, MapBuilder, StringBuilder};
use arrow_array::types::{IntervalDayTime, IntervalMonthDayNano};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array,
    DurationMicrosecondArray, FixedSizeBinaryArray, Float32Array, Float64Array, Int8Array,
    Int16Array, Int32Array, Int64Array, IntervalDayTimeArray, IntervalMonthDayNanoArray,
    IntervalYearMonthArray, LargeBinaryArray, LargeStringArray, RecordBatch, StringArray,
    StructArray, Time64NanosecondArray, TimestampMicrosecondArray, UInt16Array, make_array,
};
use arrow_data::transform::MutableArrayData;
use arrow_schema::{DataType, Field, Schema};

/// Good enough to vary tests, and the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Numbers below `n`, now and then none.
    pub fn maybe(&mut self, n: usize) -> Option<usize> {
        (self.below(6) > 0).then(|| self.below(n))
    }
}

/// Distinct values of a type, in Spark's order where it has one.
pub struct Pool {
    pub values: ArrayRef,
    pub ordered: bool,
}

pub fn pools() -> Vec<Pool> {
    let long = "x".repeat(33);
    let longer = "x".repeat(100);
    let texts = vec!["", "a", "a\0", "ab", "b", &long, &longer, "é", "日本"];
    let structs = |second: ArrayRef| {
        let first: ArrayRef = Arc::new(Int32Array::from(vec![Some(-1), Some(0), Some(0), Some(7)]));
        StructArray::from(vec![
            (Arc::new(Field::new("a", DataType::Int32, true)), first),
            (
                Arc::new(Field::new("b", second.data_type().clone(), true)),
                second,
            ),
        ])
    };
    let mut lists = ListBuilder::new(Int64Builder::new());
    for list in [&[][..], &[None], &[Some(1)], &[Some(1), None], &[Some(2)]] {
        lists.append_value(list.iter().copied());
    }
    let mut maps = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    for size in 0..4 {
        for entry in 0..size {
            maps.keys().append_value(format!("k{entry}"));
            maps.values().append_option((entry != 1).then_some(size));
        }
        maps.append(true).unwrap();
    }
    let dates = Decimal128Array::from(vec![-(10_i128.pow(37)), -1, 0, 1, 10_i128.pow(37)])
        .with_precision_and_scale(38, 10);
    let ordered: Vec<ArrayRef> = vec![
        Arc::new(Int8Array::from(vec![i8::MIN, -1, 0, i8::MAX])),
        Arc::new(Int16Array::from(vec![i16::MIN, -1, 0, i16::MAX])),
        Arc::new(Int32Array::from(vec![i32::MIN, -1, 0, i32::MAX])),
        Arc::new(Int64Array::from(vec![i64::MIN, -1, 0, 1, i64::MAX])),
        Arc::new(UInt16Array::from(vec![0, 1, 40_000])),
        Arc::new(Float32Array::from(vec![
            f32::NEG_INFINITY,
            -1.5,
            0.0,
            2.5,
            f32::NAN,
        ])),
        Arc::new(Float64Array::from(vec![
            f64::NEG_INFINITY,
            -1.5,
            0.0,
            2.5,
            f64::INFINITY,
            f64::NAN,
        ])),
        Arc::new(BooleanArray::from(vec![false, true])),
        Arc::new(Date32Array::from(vec![-1, 0, 20_000])),
        Arc::new(
            TimestampMicrosecondArray::from(vec![-5, 0, 1 << 50]).with_timezone("Europe/Oslo"),
        ),
        Arc::new(TimestampMicrosecondArray::from(vec![-5, 0, 1 << 50])),
        Arc::new(DurationMicrosecondArray::from(vec![-5, 0, 1 << 50])),
        Arc::new(Time64NanosecondArray::from(vec![0, 1, 1 << 40])),
        Arc::new(IntervalYearMonthArray::from(vec![-13, 0, 13])),
        Arc::new(IntervalDayTimeArray::from(vec![
            IntervalDayTime::new(-1, 0),
            IntervalDayTime::new(0, 5),
        ])),
        Arc::new(dates.unwrap()),
        Arc::new(StringArray::from(texts.clone())),
        Arc::new(LargeStringArray::from(texts.clone())),
        Arc::new(BinaryArray::from_iter_values(texts)),
        Arc::new(FixedSizeBinaryArray::try_from_iter(["abc", "abd", "zzz"].into_iter()).unwrap()),
        Arc::new(structs(Arc::new(Int64Array::from(vec![
            Some(3),
            None,
            Some(2),
            Some(1),
        ])))),
        Arc::new(structs(Arc::new(Float64Array::from(vec![
            Some(3.0),
            None,
            Some(2.0),
            Some(f64::NAN),
        ])))),
        Arc::new(structs(Arc::new(StringArray::from(vec![
            Some("z"),
            None,
            Some(""),
            Some("b"),
        ])))),
        Arc::new(structs(Arc::new(LargeBinaryArray::from(vec![
            Some(b"z".as_slice()),
            None,
            Some(b""),
            Some(b"b"),
        ])))),
        Arc::new(StructArray::from(vec![(
            Arc::new(Field::new("a", DataType::Utf8, true)),
            Arc::new(StringArray::from(vec![
                None,
                Some(""),
                Some("a"),
                Some("ab"),
            ])) as ArrayRef,
        )])),
        Arc::new(lists.finish()),
    ];
    let unordered: Vec<ArrayRef> = vec![
        Arc::new(IntervalMonthDayNanoArray::from(vec![
            IntervalMonthDayNano::new(1, 2, 3),
            IntervalMonthDayNano::new(-1, 0, 9),
        ])),
        Arc::new(maps.finish()),
    ];
    let ordered = ordered.into_iter().map(|values| (values, true));
    let unordered = unordered.into_iter().map(|values| (values, false));
    let all = ordered.chain(unordered);
    all.map(|(values, ordered)| Pool { values, ordered })
        .collect()
}

/// The values at these places of a column, `None` for null.
pub fn take(values: &ArrayRef, places: &[Option<usize>]) -> ArrayRef {
    let data = values.to_data();
    let mut taken = MutableArrayData::new(vec![&data], true, places.len());
    for place in places {
        match place {
            Some(i) => taken.try_extend(0, *i, i + 1).unwrap(),
            None => taken.try_extend_nulls(1).unwrap(),
        }
    }
    make_array(taken.freeze())
}

pub fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
    let fields = columns
        .iter()
        .enumerate()
        .map(|(i, c)| Field::new(format!("c{i}"), c.data_type().clone(), true));
    let schema = Schema::new(fields.collect::<Vec<_>>());
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

/// Groups as a store would keep them, in order of arrival.
pub struct Merged {
    layout: Arc<Layout>,
    places: HashMap<(i64, Vec<u8>), usize>,
    pub slices: Vec<i64>,
    keys: Vec<Vec<u8>>,
    values: Vec<Vec<u8>>,
}

impl Merged {
    pub fn new(layout: &Arc<Layout>) -> Self {
        Self {
            layout: Arc::clone(layout),
            places: HashMap::new(),
            slices: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
        }
    }

    pub fn merge(&mut self, batch: &RecordBatch) -> _kernel::error::Result<()> {
        let rows = EncodedRows::new(&self.layout, batch)?;
        for i in 0..rows.len() {
            assert_eq!(rows.hash(i), _kernel::hash::hash_key(rows.key(i)));
            let group = (rows.slice(i), rows.key(i).to_vec());
            if let Some(place) = self.places.get(&group) {
                let state = &mut self.values[*place];
                let mut merged = Vec::new();
                if !self
                    .layout
                    .merge_variable(state, rows.value(i), &mut merged)?
                {
                    merged.clone_from(state);
                }
                if self.layout.value_width().is_some() {
                    self.layout.merge_fixed(state, rows.value(i))?;
                    assert_eq!(*state, merged, "the two ways of merging agree");
                }
                *state = merged;
            } else {
                self.places.insert(group, self.values.len());
                self.slices.push(rows.slice(i));
                self.keys.push(rows.key(i).to_vec());
                self.values.push(rows.value(i).to_vec());
            }
        }
        Ok(())
    }

    pub fn expiries(&self) -> Vec<Option<i64>> {
        self.keys.iter().map(|k| self.layout.expiry(k)).collect()
    }

    pub fn decode(&self) -> RecordBatch {
        let keys: Vec<&[u8]> = self.keys.iter().map(Vec::as_slice).collect();
        let values: Vec<&[u8]> = self.values.iter().map(Vec::as_slice).collect();
        self.layout.decode(&keys, &values).unwrap()
    }
}

/// Sends the rows through two combiners, drained now and then, into one store.
pub fn combine(layout: &Arc<Layout>, rows: &RecordBatch, random: &mut Random) -> Merged {
    let mut merged = Merged::new(layout);
    let half = rows.num_rows() / 2;
    for part in [
        rows.slice(0, half),
        rows.slice(half, rows.num_rows() - half),
    ] {
        let mut combiner = Combiner::new(Arc::clone(layout), &[0, 1000, 1024, 4000], None).unwrap();
        let mut start = 0;
        while start < part.num_rows() {
            let length = (1 + random.below(200)).min(part.num_rows() - start);
            combiner.push(&part.slice(start, length)).unwrap();
            start += length;
            if random.below(3) == 0 || start == part.num_rows() {
                for (_, batch) in combiner.drain().unwrap() {
                    merged.merge(&batch).unwrap();
                }
            }
        }
        assert_eq!(combiner.rows(), part.num_rows() as u64);
    }
    merged
}

/// Where in the pool each value of a column lies.
pub fn places_in(pool: &ArrayRef, column: &ArrayRef) -> Vec<Option<usize>> {
    (0..column.len())
        .map(|i| {
            let value = column.slice(i, 1).to_data();
            (column.is_valid(i)).then(|| {
                (0..pool.len())
                    .find(|j| pool.slice(*j, 1).to_data() == value)
                    .unwrap_or_else(|| panic!("{value:?} is not in the pool"))
            })
        })
        .collect()
}
