//! Tests of the random numbers that the generator draws from a seed.

use onramp_sim::Chance;

/// For the seed 1234567, the generator draws the numbers of SplitMix64 that others have published
/// (Rosetta Code, "Pseudo-random numbers/Splitmix64").
const KNOWN: [u64; 5] = [
    6_457_827_717_110_365_317,
    3_203_168_211_198_807_973,
    9_817_491_932_198_370_423,
    4_593_380_528_125_082_431,
    16_408_922_859_458_223_821,
];

#[test]
fn the_numbers_are_those_of_splitmix64() {
    let mut chance = Chance::new(1_234_567);
    for number in KNOWN {
        // For the number x that the generator draws, and an end of 2^64 - 1, `below` returns x - x
        // / 2^64, rounded down.
        assert_eq!(chance.below(u64::MAX), number - 1);
    }
    let mut chance = Chance::new(1_234_567);
    // Here x / 2^64 is 0.350, 0.174, 0.532, 0.249 and 0.890 for the numbers x that the generator
    // draws. With an end of ten, each result is ten times that, rounded down.
    assert_eq!(KNOWN.map(|_| chance.below(10)), [3, 1, 5, 2, 8]);
    assert_eq!(chance.below(0), 0);
}

#[test]
fn gaps_follow_from_the_numbers() {
    let mut chance = Chance::new(1_234_567);
    // For the number x that the generator draws, an exponential gap is -ln(1 - x / 2^64) times the
    // mean, which is 1,000,000 here.
    assert_eq!([(); 3].map(|()| chance.exponential(1_000_000)), [430_905, 190_730, 759_730]);
    assert_eq!(chance.exponential(0), 0);
}
