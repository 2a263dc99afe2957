//! Draws of single fields. Each makes its random numbers in Beam's order; strings are appended to a buffer.

use super::config::{Config, last_auction, last_person};
use super::random::Random;

/// Ids may run ahead of what exists by so many.
const LEAD: u64 = 10;

#[inline]
pub fn price(random: &mut Random) -> i64 {
    (10f64.powf(random.double() * 6.0) * 100.0).round() as i64
}

/// Letters and some spaces, shorter than `max`, which is at most 100; spaces at the ends are cut off.
pub fn words(random: &mut Random, max: i32, out: &mut Vec<u8>) {
    let mut drawn = [b' '; 100];
    let length = (3 + random.below(max - 3)) as usize;
    for place in drawn.iter_mut().take(length) {
        if random.below(13) != 0 {
            *place = b'a' + random.below(26) as u8;
        }
    }
    out.extend_from_slice(drawn.trim_ascii());
}

/// Six characters from each int. Remainders of a negative one are negative: characters below 'a'.
#[inline]
fn six(random: &mut Random) -> [u8; 6] {
    let mut rest = random.int();
    let mut drawn = [b'a'; 6];
    for place in &mut drawn {
        *place = (97 + rest % 26) as u8;
        rest /= 26;
    }
    drawn
}

/// Characters that bring a record of `current` bytes to about `average`.
#[inline]
pub fn extra(random: &mut Random, current: usize, average: usize, out: &mut Vec<u8>) {
    if current > average {
        return;
    }
    let rest = average - current;
    let spread = (rest as f64 * 0.2).round() as usize;
    let drawn = if spread == 0 {
        0
    } else {
        random.below(2 * spread as i32) as usize
    };
    let length = rest - spread + drawn;
    let end = out.len() + length;
    out.reserve(length + 6);
    while out.len() < end {
        out.extend_from_slice(&six(random));
    }
    out.truncate(end);
}

/// One of the people that are active at an event, from 0.
#[inline]
pub fn active_person(random: &mut Random, event: u64, config: &Config) -> u64 {
    let people = last_person(event) + 1;
    let active = people.min(config.settings.active_people);
    people - active + random.below((active + LEAD) as i32) as u64
}

/// One of the auctions in flight at an event, from 0.
#[inline]
pub fn in_flight_auction(random: &mut Random, event: u64, config: &Config) -> u64 {
    let high = last_auction(event);
    let low = high.saturating_sub(config.settings.in_flight_auctions);
    low + random.below((high - low + 1 + LEAD) as i32) as u64
}
