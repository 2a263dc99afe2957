//! Which runs of a join are in memory.
//!
//! The side that is looked into more for each of its bytes comes first. Where it is known when the rows expire that
//! batches look for, those of the next batch come first on a side, then those that time makes readable after them; runs
//! that nothing will ask for soon are shut when there is no room for their indexes and filters. On other sides every
//! run is asked, and the newest come first.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::join::layout::{LEFT, RIGHT, Span};
use crate::join::part::{Part, side_of, span_of};
use crate::lookup::Counters;

/// When the rows of a side expire that batches looked for, where that is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    running: Option<Span>,
    last: Option<Span>,
    /// What the next batch will look for, if it is as far from the last as that was from the one before.
    expected: Option<Span>,
}

impl Asked {
    pub fn add(&mut self, asked: Option<Span>) {
        self.running = match (self.running, asked) {
            (Some(one), Some(other)) => Some(one.around(other)),
            (one, other) => one.or(other),
        };
    }

    pub fn forget_batch(&mut self) {
        self.running = None;
    }

    pub fn commit(&mut self) {
        let Some(now) = self.running.take() else {
            return;
        };
        let before = self.last.unwrap_or(now);
        let ahead = |now: i64, before: i64| {
            let moved = now.saturating_sub(before).max(0);
            now.saturating_add(moved)
        };
        self.expected = Some(Span {
            first: ahead(now.first, before.first),
            last: ahead(now.last, before.last),
        });
        self.last = Some(now);
    }

    pub fn expected(&self) -> Option<Span> {
        self.expected
    }
}

/// How the memory is to be shared out.
pub struct Shares {
    pub limit: usize,
    pub slice_us: i64,
    /// Keys that were looked up on each side.
    pub wanted: [u64; 2],
    pub expected: [Option<Span>; 2],
}

/// A part in the order in which memory is given.
struct Turn {
    part: i64,
    /// Its runs are looked into, so that their indexes and filters have to be there.
    is_asked: bool,
    reads_ahead: bool,
}

impl Shares {
    /// Lets go of what has no room any more and reads what comes before the next batch; what is left to be read ahead,
    /// runs tell as missing.
    pub fn share_out(
        &self,
        parts: &mut BTreeMap<i64, Part>,
        counters: &mut Counters,
    ) -> Result<()> {
        let turns = self.turns(parts);
        let asked = turns.iter().filter(|turn| turn.is_asked);
        let fixed: usize = asked
            .filter_map(|turn| parts.get(&turn.part))
            .flat_map(|part| &part.runs)
            .map(|held| held.open_bytes())
            .sum();
        let mut room = self.limit.saturating_sub(fixed);
        for turn in turns {
            let Some(part) = parts.get_mut(&turn.part) else {
                continue;
            };
            for held in part.runs.iter_mut().rev() {
                if !turn.is_asked {
                    match room.checked_sub(held.open_bytes()) {
                        Some(left) => room = left,
                        None => {
                            held.shut();
                            continue;
                        }
                    }
                }
                room -= held.want(room);
                if !turn.reads_ahead || held.is_new() {
                    held.fill(counters)?;
                }
            }
        }
        Ok(())
    }

    fn turns(&self, parts: &BTreeMap<i64, Part>) -> Vec<Turn> {
        let mut bytes = [1u64, 1];
        for (at, part) in parts {
            bytes[side_of(*at)] += part.run_bytes();
        }
        let density = |side: usize| self.wanted[side] as f64 / bytes[side] as f64;
        let order = match density(LEFT) >= density(RIGHT) {
            true => [LEFT, RIGHT],
            false => [RIGHT, LEFT],
        };
        let mut turns = Vec::with_capacity(parts.len());
        for side in order {
            let newest_first = parts.keys().rev().filter(|at| side_of(**at) == side);
            let Some(expected) = self.expected[side] else {
                turns.extend(newest_first.map(|at| Turn {
                    part: *at,
                    is_asked: true,
                    reads_ahead: false,
                }));
                continue;
            };
            let (mut asked, mut later, mut past) = (Vec::new(), Vec::new(), Vec::new());
            for at in newest_first {
                let span = span_of(*at, self.slice_us);
                if span.meets(expected) {
                    asked.push(*at);
                } else if span.first > expected.last {
                    later.push(*at);
                } else {
                    past.push(*at);
                }
            }
            let turn = |is_asked: bool| {
                move |part: i64| Turn {
                    part,
                    is_asked,
                    reads_ahead: true,
                }
            };
            turns.extend(asked.into_iter().map(turn(true)));
            turns.extend(later.into_iter().rev().chain(past).map(turn(false)));
        }
        turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::join::part::part_of;

    fn span(first: i64, last: i64) -> Span {
        Span { first, last }
    }

    #[test]
    fn the_next_batch_is_expected_as_far_ahead_as_the_last_was() {
        let mut asked = Asked::default();
        asked.add(Some(span(10, 20)));
        asked.add(None);
        asked.add(Some(span(12, 25)));
        asked.commit();
        assert_eq!(asked.expected(), Some(span(10, 25)));
        asked.add(Some(span(14, 30)));
        asked.forget_batch();
        asked.commit();
        assert_eq!(asked.expected(), Some(span(10, 25)));
        asked.add(Some(span(14, 30)));
        asked.commit();
        assert_eq!(asked.expected(), Some(span(18, 35)));
        asked.add(Some(span(2, i64::MAX)));
        asked.commit();
        assert_eq!(asked.expected(), Some(span(2, i64::MAX)));
    }

    #[test]
    fn what_is_asked_next_comes_first_then_what_time_makes_readable() {
        let ends = [10, 20, 30, 40, 50];
        let parts = ends.map(|end| (part_of(RIGHT, end, 10), Part::default()));
        let parts = BTreeMap::from(parts);
        let shares = |expected| Shares {
            limit: 0,
            slice_us: 10,
            wanted: [0, 0],
            expected: [None, expected],
        };
        let order = |shares: Shares| -> Vec<(i64, bool)> {
            let turns = shares.turns(&parts);
            let turns = turns.iter();
            turns.map(|turn| (turn.part >> 1, turn.is_asked)).collect()
        };
        let newest = order(shares(None));
        assert_eq!(newest, [50, 40, 30, 20, 10].map(|end| (end, true)));
        let near = order(shares(Some(span(15, 25))));
        let wanted = [
            (30, true),
            (20, true),
            (40, false),
            (50, false),
            (10, false),
        ];
        assert_eq!(near, wanted);
    }
}
