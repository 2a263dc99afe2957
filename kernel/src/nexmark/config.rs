//! What can be set about the events, the checks, and what follows from it: event times and ids.

use crate::error::{Error, Result};

/// Of 50 consecutive events the first is a person, three are auctions, the rest bids.
pub const EPOCH: u64 = 50;
pub const AUCTIONS_PER_EPOCH: u64 = 3;
/// First id of people and auctions; ids inside the generator start at 0.
pub const FIRST_ID: i64 = 1000;

/// As given; the defaults are Beam's.
#[derive(Clone, Debug)]
pub struct Settings {
    pub events_per_second: u64,
    pub base_time_ms: i64,
    pub out_of_order_group: u64,
    pub hot_auction_ratio: i32,
    pub hot_seller_ratio: i32,
    pub hot_bidder_ratio: i32,
    /// The hot auction changes whenever so many more auctions are open; so do seller and bidder with people.
    pub hot_auction_interval: u64,
    pub hot_seller_interval: u64,
    pub hot_bidder_interval: u64,
    pub in_flight_auctions: u64,
    pub active_people: u64,
    pub person_bytes: usize,
    pub auction_bytes: usize,
    pub bid_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            events_per_second: 10_000,
            base_time_ms: 1_436_918_400_000,
            out_of_order_group: 1,
            hot_auction_ratio: 2,
            hot_seller_ratio: 4,
            hot_bidder_ratio: 4,
            hot_auction_interval: 100,
            hot_seller_interval: 100,
            hot_bidder_interval: 100,
            in_flight_auctions: 100,
            active_people: 1000,
            person_bytes: 200,
            auction_bytes: 500,
            bid_bytes: 100,
        }
    }
}

/// Settings that were checked.
#[derive(Clone, Debug)]
pub struct Config {
    pub settings: Settings,
    delay_us: u64,
}

const STEP: u64 = 953;
/// Larger counts of active people or auctions could not be drawn as an int.
const MOST_ACTIVE: u64 = 1 << 30;
const LARGEST: usize = 1 << 20;
/// Event times and products with the step stay far from the end of 64 bits.
const LAST_EVENT: u64 = 1 << 48;

impl Config {
    pub fn new(settings: Settings) -> Result<Self> {
        let s = &settings;
        check(
            "events_per_second",
            s.events_per_second,
            1,
            1_000_000,
            "event times are apart by whole microseconds",
        )?;
        for (name, ratio) in [
            ("hot_auction_ratio", s.hot_auction_ratio),
            ("hot_seller_ratio", s.hot_seller_ratio),
            ("hot_bidder_ratio", s.hot_bidder_ratio),
        ] {
            let ratio = u64::try_from(ratio).unwrap_or(0);
            check(name, ratio, 1, MOST_ACTIVE, "1 means that none is hot")?;
        }
        for (name, count) in [
            ("hot_auction_interval", s.hot_auction_interval),
            ("hot_seller_interval", s.hot_seller_interval),
            ("hot_bidder_interval", s.hot_bidder_interval),
            ("in_flight_auctions", s.in_flight_auctions),
            ("active_people", s.active_people),
        ] {
            check(name, count, 1, MOST_ACTIVE, "it counts auctions or people")?;
        }
        for (name, size) in [
            ("person_bytes", s.person_bytes),
            ("auction_bytes", s.auction_bytes),
            ("bid_bytes", s.bid_bytes),
        ] {
            check(name, size as u64, 0, LARGEST as u64, "it is an average")?;
        }
        check(
            "out_of_order_group",
            s.out_of_order_group,
            1,
            MOST_ACTIVE,
            "1 means in order",
        )?;
        if s.out_of_order_group.is_multiple_of(STEP) {
            return Err(Error::invalid(format!(
                "out_of_order_group is {}, a multiple of {STEP}: events of a group would repeat; take another size",
                s.out_of_order_group
            )));
        }
        let delay_us = (1_000_000 + s.events_per_second / 2) / s.events_per_second;
        Ok(Self { settings, delay_us })
    }

    /// Refuses ranges that reach numbers for which ids or times would overflow.
    pub fn check_range(&self, first: u64, count: u64) -> Result<()> {
        match first.checked_add(count) {
            Some(end) if end <= LAST_EVENT => Ok(()),
            _ => Err(Error::invalid(format!(
                "events {first} and the {count} after it reach beyond number {LAST_EVENT}"
            ))),
        }
    }

    /// The event that comes at this place in the stream.
    #[inline]
    pub fn at_place(&self, place: u64) -> u64 {
        let group = self.settings.out_of_order_group;
        if group == 1 {
            return place;
        }
        let offset = place % group;
        place - offset + offset * STEP % group
    }

    #[inline]
    pub fn time_ms(&self, event: u64) -> i64 {
        self.settings.base_time_ms + (event * self.delay_us / 1000) as i64
    }

    /// Auctions stay open, on average, as long as it takes to open as many as are in flight.
    #[inline]
    pub fn horizon_ms(&self, event: u64) -> i64 {
        let ahead = self.settings.in_flight_auctions * EPOCH / AUCTIONS_PER_EPOCH;
        self.time_ms(event + ahead) - self.time_ms(event)
    }
}

fn check(name: &str, value: u64, least: u64, most: u64, why: &str) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{name} must be from {least} to {most} ({why}), not {value}"
    )))
}

/// The newest person at an event, from 0.
#[inline]
pub fn last_person(event: u64) -> u64 {
    event / EPOCH
}

/// The newest auction when an auction or a bid is due, from 0.
#[inline]
pub fn last_auction(event: u64) -> u64 {
    let due = (event % EPOCH).clamp(1, AUCTIONS_PER_EPOCH) - 1;
    event / EPOCH * AUCTIONS_PER_EPOCH + due
}
