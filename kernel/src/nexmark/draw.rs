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

/// Two digits to the base of 26 for every number below 26², the lower one in the lower byte.
const PAIRS: [u16; 676] = {
    let mut pairs = [0; 676];
    let mut number = 0;
    while number < 676 {
        pairs[number] = (number % 26 + ((number / 26) << 8)) as u16;
        number += 1;
    }
    pairs
};

#[inline]
fn pair(number: u32) -> u64 {
    PAIRS
        .get((number % 676) as usize)
        .map_or(0, |digits| u64::from(*digits))
}

/// Six characters from each int: its lower digits to the base of 26, counted up from 'a', or down from it where the
/// int is negative. Most of an event's bytes are made here, so all six are added at once; no byte over- or underflows.
#[inline]
fn six(random: &mut Random) -> [u8; 6] {
    const LETTERS: u64 = 0x6161_6161_6161;
    let drawn = random.int();
    let size = drawn.unsigned_abs();
    let digits = pair(size) | (pair(size / 676) << 16) | (pair(size / (676 * 676)) << 32);
    let letters = if drawn < 0 {
        LETTERS - digits
    } else {
        LETTERS + digits
    };
    let [a, b, c, d, e, f, _, _] = letters.to_le_bytes();
    [a, b, c, d, e, f]
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
    let start = out.len();
    out.resize(start + length.next_multiple_of(6), 0);
    let (sixes, _) = out.get_mut(start..).unwrap_or_default().as_chunks_mut();
    for place in sixes {
        *place = six(random);
    }
    out.truncate(start + length);
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

#[cfg(test)]
mod tests {
    use super::{Random, six};

    #[test]
    fn six_characters_are_remainders_with_the_sign_of_the_int() {
        let mut below_a = 0;
        for seed in 0..10_000 {
            let mut rest = Random::new(seed).int();
            let mut plain = [0; 6];
            for place in &mut plain {
                *place = (97 + rest % 26) as u8;
                rest /= 26;
            }
            assert_eq!(six(&mut Random::new(seed)), plain);
            below_a += plain.iter().filter(|letter| **letter < b'a').count();
        }
        assert!(below_a > 0);
    }
}
