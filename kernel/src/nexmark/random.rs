//! Random numbers with the semantics of `java.util.Random`: a linear congruential generator of 48 bits.

const MULTIPLIER: u64 = 0x5_DEEC_E66D;
const INCREMENT: u64 = 0xB;

/// Only the lower 48 bits of the state count; what is above them never comes down.
pub struct Random {
    state: u64,
}

impl Random {
    #[inline]
    pub fn new(seed: u64) -> Self {
        Self {
            state: seed ^ MULTIPLIER,
        }
    }

    #[inline]
    fn next(&mut self, bits: u32) -> i32 {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        ((self.state << 16) >> (64 - bits)) as i32
    }

    /// Any int.
    #[inline]
    pub fn int(&mut self) -> i32 {
        self.next(32)
    }

    /// From 0 up to `bound`, which is positive and not included.
    #[inline]
    pub fn below(&mut self, bound: i32) -> i32 {
        let bits = self.next(31);
        if bound & (bound - 1) == 0 {
            return ((i64::from(bound) * i64::from(bits)) >> 31) as i32;
        }
        // Numbers of the last, incomplete round of `bound` are drawn again.
        let mut bits = bits;
        loop {
            let value = bits % bound;
            if bits.wrapping_sub(value).wrapping_add(bound - 1) >= 0 {
                return value;
            }
            bits = self.next(31);
        }
    }

    /// As `below`; bounds that do not fit an int take the remainder of a long.
    #[inline]
    pub fn below_long(&mut self, bound: i64) -> i64 {
        match i32::try_from(bound) {
            Ok(small) if small < i32::MAX => i64::from(self.below(small)),
            _ => {
                let high = i64::from(self.int()) << 32;
                (high.wrapping_add(i64::from(self.int())) % bound).abs()
            }
        }
    }

    /// From 0 up to 1, which is not included.
    #[inline]
    pub fn double(&mut self) -> f64 {
        let high = i64::from(self.next(26)) << 27;
        (high + i64::from(self.next(27))) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn draws_are_java_s() {
        // The first numbers of `new Random(42)`.
        let mut random = Random::new(42);
        assert_eq!(random.int(), -1_170_105_035);
        assert_eq!(random.int(), 234_785_527);
        assert_eq!(Random::new(42).below(10), 0);
        assert_eq!(Random::new(42).double(), 0.727_563_680_032_868_1);
    }

    #[test]
    fn a_bound_above_an_int_draws_a_long() {
        // `new Random(42).nextLong()` is -5025562857975149833.
        assert_eq!(
            Random::new(42).below_long(1 << 40),
            (-5_025_562_857_975_149_833_i64 % (1 << 40)).abs()
        );
    }
}
