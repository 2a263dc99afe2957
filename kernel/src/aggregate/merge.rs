//! Merging a partial value into a state, byte for byte: what runs once per row and group.

use super::{
    Aggregates, BitOp, Cell, OVERFLOWED, OnOverflow, Slot, UNSET, VALUE, read_f64, read_i64,
    read_i128, write,
};
use crate::codec::ENCODED_ROWS;
use crate::error::{Error, Result};

impl Aggregates {
    /// Merges values without tails in place; both have the length of the fixed part.
    #[inline]
    pub fn merge_fixed(&self, state: &mut [u8], partial: &[u8]) -> Result<()> {
        for aggregate in &self.list {
            match &aggregate.slot {
                Slot::Extreme { cell, largest } => {
                    if beats(cell, *largest, false, state, partial, &mut 0, &mut 0)?.0 {
                        take(cell, state, partial);
                    }
                }
                Slot::Pick { cell, last, .. } => {
                    if picks(cell, *last, state, partial) {
                        take(cell, state, partial);
                    }
                }
                Slot::By {
                    order,
                    value,
                    largest,
                } => {
                    if beats(order, *largest, true, state, partial, &mut 0, &mut 0)?.0 {
                        take(order, state, partial);
                        take(value, state, partial);
                    }
                }
                slot => merge_number(slot, state, partial)?,
            }
        }
        Ok(())
    }

    /// Merges any two values into `out`; false, and nothing in `out`, where the state stays as it is.
    pub fn merge_variable(&self, state: &[u8], partial: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        // Most rows do not come among the first few, and those lists are long to copy.
        if let [only] = self.list.as_slice()
            && let Slot::Top(top) = &only.slot
            && top.is_behind(state, partial, self.fixed)?
        {
            return Ok(false);
        }
        out.clear();
        out.extend_from_slice(&state[..self.fixed]);
        let (mut state_tail, mut partial_tail) = (self.fixed, self.fixed);
        for aggregate in &self.list {
            match &aggregate.slot {
                Slot::Extreme { cell, largest } => {
                    let (taken, bytes) = beats(
                        cell,
                        *largest,
                        false,
                        state,
                        partial,
                        &mut state_tail,
                        &mut partial_tail,
                    )?;
                    if taken {
                        take(cell, out, partial);
                    }
                    append(cell, bytes, out);
                }
                Slot::Pick { cell, last, .. } => {
                    let old = cell.bytes(state, &mut state_tail)?;
                    let new = cell.bytes(partial, &mut partial_tail)?;
                    if picks(cell, *last, state, partial) {
                        take(cell, out, partial);
                        append(cell, new, out);
                    } else {
                        append(cell, old, out);
                    }
                }
                Slot::By {
                    order,
                    value,
                    largest,
                } => {
                    let (taken, bytes) = beats(
                        order,
                        *largest,
                        true,
                        state,
                        partial,
                        &mut state_tail,
                        &mut partial_tail,
                    )?;
                    let old = value.bytes(state, &mut state_tail)?;
                    let new = value.bytes(partial, &mut partial_tail)?;
                    if taken {
                        take(order, out, partial);
                        take(value, out, partial);
                    }
                    append(order, bytes, out);
                    append(value, if taken { new } else { old }, out);
                }
                Slot::Top(top) => {
                    top.merge(state, partial, &mut state_tail, &mut partial_tail, out)?;
                }
                slot => merge_number(slot, out, partial)?,
            }
        }
        if state_tail != state.len() || partial_tail != partial.len() {
            return Err(Error::damaged(
                ENCODED_ROWS,
                "a value is longer than its lengths say",
            ));
        }
        Ok(true)
    }
}

/// Whether the partial's value replaces the state's, and the encoded value that stays. `ties`: equal ones replace,
/// as in Spark's `min_by` and `max_by`.
#[inline]
fn beats<'a>(
    cell: &Cell,
    largest: bool,
    ties: bool,
    state: &'a [u8],
    partial: &'a [u8],
    state_tail: &mut usize,
    partial_tail: &mut usize,
) -> Result<(bool, &'a [u8])> {
    let old = cell.bytes(state, state_tail)?;
    let new = cell.bytes(partial, partial_tail)?;
    let taken = partial[cell.at] == VALUE
        && (state[cell.at] != VALUE
            || match new.cmp(old) {
                std::cmp::Ordering::Greater => largest,
                std::cmp::Ordering::Less => !largest,
                std::cmp::Ordering::Equal => ties,
            });
    Ok((taken, if taken { new } else { old }))
}

#[inline]
fn picks(cell: &Cell, last: bool, state: &[u8], partial: &[u8]) -> bool {
    partial[cell.at] != UNSET && (last || state[cell.at] == UNSET)
}

#[inline]
fn take(cell: &Cell, state: &mut [u8], partial: &[u8]) {
    state[cell.at..cell.end()].copy_from_slice(&partial[cell.at..cell.end()]);
}

fn append(cell: &Cell, bytes: &[u8], out: &mut Vec<u8>) {
    if cell.is_variable() {
        out.extend_from_slice(bytes);
    }
}

#[inline]
fn merge_number(slot: &Slot, state: &mut [u8], partial: &[u8]) -> Result<()> {
    match slot {
        Slot::Count { at } => {
            let count = read_i64(state, *at).wrapping_add(read_i64(partial, *at));
            write(state, *at, &count.to_le_bytes());
        }
        Slot::SumInt { at, on_overflow } => merge_sum(*at, *on_overflow, state, partial)?,
        Slot::SumFloat { at } => {
            if partial[*at] != UNSET {
                let sum = read_f64(state, at + 1) + read_f64(partial, at + 1);
                state[*at] = VALUE;
                write(state, at + 1, &sum.to_le_bytes());
            }
        }
        Slot::SumDecimal { at, limit, .. } => merge_decimal(*at, *limit, state, partial),
        Slot::Bits { at, op, .. } => {
            if partial[*at] != UNSET {
                let new = read_i64(partial, at + 1);
                let bits = match (state[*at], op) {
                    (UNSET, _) => new,
                    (_, BitOp::And) => read_i64(state, at + 1) & new,
                    (_, BitOp::Or) => read_i64(state, at + 1) | new,
                    (_, BitOp::Xor) => read_i64(state, at + 1) ^ new,
                };
                state[*at] = VALUE;
                write(state, at + 1, &bits.to_le_bytes());
            }
        }
        Slot::Moments { at } => merge_moments(*at, state, partial),
        Slot::Extreme { .. } | Slot::Pick { .. } | Slot::By { .. } | Slot::Top(_) => {}
    }
    Ok(())
}

#[inline]
fn merge_sum(at: usize, on_overflow: OnOverflow, state: &mut [u8], partial: &[u8]) -> Result<()> {
    if partial[at] == UNSET || state[at] == OVERFLOWED {
        return Ok(());
    }
    if partial[at] == OVERFLOWED {
        state[at..at + 9].copy_from_slice(&partial[at..at + 9]);
        return Ok(());
    }
    let (old, new) = (read_i64(state, at + 1), read_i64(partial, at + 1));
    let (sum, overflowed) = old.overflowing_add(new);
    if overflowed && on_overflow != OnOverflow::Wrap {
        if on_overflow == OnOverflow::Fail {
            return Err(Error::Overflow("long overflow".to_owned()));
        }
        state[at] = OVERFLOWED;
        write(state, at + 1, &[0; 8]);
        return Ok(());
    }
    state[at] = VALUE;
    write(state, at + 1, &sum.to_le_bytes());
    Ok(())
}

fn merge_decimal(at: usize, limit: i128, state: &mut [u8], partial: &[u8]) {
    if partial[at] == UNSET || state[at] == OVERFLOWED {
        return;
    }
    let sum = read_i128(state, at + 1)
        .checked_add(read_i128(partial, at + 1))
        .filter(|sum| partial[at] == VALUE && sum.unsigned_abs() < limit.unsigned_abs());
    state[at] = if sum.is_some() { VALUE } else { OVERFLOWED };
    write(state, at + 1, &sum.unwrap_or(0).to_le_bytes());
}

/// Spark's formulas: one more row by Welford's, a merge of two states by Chan's.
fn merge_moments(at: usize, state: &mut [u8], partial: &[u8]) {
    let (n1, mean1, m2_1) = read_moments(at, state);
    let (n2, mean2, m2_2) = read_moments(at, partial);
    if n2 == 0.0 {
        return;
    }
    if n1 == 0.0 {
        state[at..at + 24].copy_from_slice(&partial[at..at + 24]);
        return;
    }
    let n = n1 + n2;
    let delta = mean2 - mean1;
    let delta_n = delta / n;
    let (mean, m2) = if n2 == 1.0 {
        (mean1 + delta_n, m2_1 + delta * (delta - delta_n))
    } else {
        (
            mean1 + delta_n * n2,
            m2_1 + m2_2 + delta * delta_n * n1 * n2,
        )
    };
    write(state, at, &n.to_le_bytes());
    write(state, at + 8, &mean.to_le_bytes());
    write(state, at + 16, &m2.to_le_bytes());
}

fn read_moments(at: usize, bytes: &[u8]) -> (f64, f64, f64) {
    (
        read_f64(bytes, at),
        read_f64(bytes, at + 8),
        read_f64(bytes, at + 16),
    )
}
