//! The three kinds of event. Numbers are returned, strings are appended to the buffers of their fields, so that
//! columns fill without a copy.

use super::config::{Config, EPOCH, FIRST_ID, last_auction, last_person};
use super::draw::{active_person, extra, in_flight_auction, price, words};
use super::random::Random;

const FIRST_CATEGORY: i64 = 10;
const CATEGORIES: i32 = 5;
const FIRST_NAMES: [&str; 11] = [
    "Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter",
];
const LAST_NAMES: [&str; 9] = [
    "Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris",
];
const CITIES: [&str; 10] = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
];
const STATES: [&str; 6] = ["AZ", "CA", "ID", "OR", "WA", "WY"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Person = 0,
    Auction = 1,
    Bid = 2,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Person, Self::Auction, Self::Bid];

    #[inline]
    pub fn of(event: u64) -> Self {
        match event % EPOCH {
            0 => Self::Person,
            1..=3 => Self::Auction,
            _ => Self::Bid,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::Auction => "auction",
            Self::Bid => "bid",
        }
    }
}

#[derive(Default)]
pub struct PersonText {
    pub name: Vec<u8>,
    pub email: Vec<u8>,
    pub card: Vec<u8>,
    pub city: Vec<u8>,
    pub state: Vec<u8>,
    pub extra: Vec<u8>,
}

pub struct Person {
    pub id: i64,
    pub ts_ms: i64,
}

#[derive(Default)]
pub struct AuctionText {
    pub name: Vec<u8>,
    pub description: Vec<u8>,
    pub extra: Vec<u8>,
}

pub struct Auction {
    pub id: i64,
    pub initial: i64,
    pub reserve: i64,
    pub ts_ms: i64,
    pub expires_ms: i64,
    pub seller: i64,
    pub category: i64,
}

pub struct Bid {
    pub auction: i64,
    pub bidder: i64,
    pub price: i64,
    pub ts_ms: i64,
}

pub fn person(event: u64, config: &Config, text: &mut PersonText) -> Person {
    let mut random = Random::new(event);
    let random = &mut random;
    let before = text.bytes_before_extra();

    text.name.extend_from_slice(one_of(&FIRST_NAMES, random));
    text.name.push(b' ');
    text.name.extend_from_slice(one_of(&LAST_NAMES, random));
    words(random, 7, &mut text.email);
    text.email.push(b'@');
    words(random, 5, &mut text.email);
    text.email.extend_from_slice(b".com");
    for group in 0..4 {
        if group > 0 {
            text.card.push(b' ');
        }
        four_digits(random.below(10_000), &mut text.card);
    }
    text.city.extend_from_slice(one_of(&CITIES, random));
    text.state.extend_from_slice(one_of(&STATES, random));

    let current = 8 + text.bytes_before_extra() - before;
    extra(
        random,
        current,
        config.settings.person_bytes,
        &mut text.extra,
    );
    Person {
        id: FIRST_ID + last_person(event) as i64,
        ts_ms: config.time_ms(event),
    }
}

impl PersonText {
    pub fn fields(&self) -> [&Vec<u8>; 6] {
        [
            &self.name,
            &self.email,
            &self.card,
            &self.city,
            &self.state,
            &self.extra,
        ]
    }

    pub fn clear(&mut self) {
        for field in [
            &mut self.name,
            &mut self.email,
            &mut self.card,
            &mut self.city,
            &mut self.state,
            &mut self.extra,
        ] {
            field.clear();
        }
    }

    /// What counts for the size that is filled up by `extra`.
    fn bytes_before_extra(&self) -> usize {
        let fields = self.fields().into_iter().take(5);
        fields.map(Vec::len).sum()
    }
}

impl AuctionText {
    pub fn fields(&self) -> [&Vec<u8>; 3] {
        [&self.name, &self.description, &self.extra]
    }

    pub fn clear(&mut self) {
        for field in [&mut self.name, &mut self.description, &mut self.extra] {
            field.clear();
        }
    }
}

pub fn auction(event: u64, config: &Config, text: &mut AuctionText) -> Auction {
    let mut random = Random::new(event);
    let random = &mut random;
    let settings = &config.settings;
    let ts_ms = config.time_ms(event);

    let seller = if random.below(settings.hot_seller_ratio) > 0 {
        hot(last_person(event), settings.hot_seller_interval)
    } else {
        active_person(random, event, config)
    };
    let category = FIRST_CATEGORY + i64::from(random.below(CATEGORIES));
    let initial = price(random);
    let longest = (2 * config.horizon_ms(event)).max(1);
    let expires_ms = ts_ms + 1 + random.below_long(longest);
    let before = text.name.len() + text.description.len();
    words(random, 20, &mut text.name);
    words(random, 100, &mut text.description);
    let reserve = initial + price(random);
    let current = 8 + text.name.len() + text.description.len() - before + 40;
    extra(random, current, settings.auction_bytes, &mut text.extra);
    Auction {
        id: FIRST_ID + last_auction(event) as i64,
        initial,
        reserve,
        ts_ms,
        expires_ms,
        seller: FIRST_ID + seller as i64,
        category,
    }
}

#[inline]
pub fn bid(event: u64, config: &Config, extra_text: &mut Vec<u8>) -> Bid {
    let mut random = Random::new(event);
    let random = &mut random;
    let settings = &config.settings;

    let auction = if random.below(settings.hot_auction_ratio) > 0 {
        hot(last_auction(event), settings.hot_auction_interval)
    } else {
        in_flight_auction(random, event, config)
    };
    let bidder = if random.below(settings.hot_bidder_ratio) > 0 {
        // One beside the hot seller.
        hot(last_person(event), settings.hot_bidder_interval) + 1
    } else {
        active_person(random, event, config)
    };
    let price = price(random);
    extra(random, 32, settings.bid_bytes, extra_text);
    Bid {
        auction: FIRST_ID + auction as i64,
        bidder: FIRST_ID + bidder as i64,
        price,
        ts_ms: config.time_ms(event),
    }
}

#[inline]
fn hot(last: u64, interval: u64) -> u64 {
    last / interval * interval
}

fn one_of(names: &[&'static str], random: &mut Random) -> &'static [u8] {
    let chosen = random.below(names.len() as i32) as usize;
    names.get(chosen).map_or(b"", |name| name.as_bytes())
}

fn four_digits(number: i32, out: &mut Vec<u8>) {
    for unit in [1000, 100, 10, 1] {
        out.push(b'0' + (number / unit % 10) as u8);
    }
}
