//! Links by name: rates, delays and losses of networks that other tools have collected.

use std::fmt;

use onramp_core::{ConfigError, Setup};

/// A link as another tool describes it.
///
/// The delay is the time of one way. Chrome, Lighthouse and WebPageTest name the time of both ways,
/// of which each way here has half; ATC, Firebase and patchbay name one way. Firefox names a least
/// latency, which counts as one way here.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Profile {
    /// Name: a network, such as `lte`, and the tool whose numbers these are where several tools
    /// have numbers for that network, such as `3g-chrome`.
    pub name: &'static str,
    /// Rate to the client and rate from the client, kbit/s; `None`: no limit.
    pub kbit: Option<(u32, u32)>,
    /// Delay to the client and delay from the client, one way, milliseconds.
    pub delay_ms: (f32, f32),
    /// Variation of both delays, milliseconds: each packet is delayed by more or less than the
    /// delay, by up to this time, so packets may overtake each other.
    pub jitter_ms: f32,
    /// Share of packets that are lost in each direction, percent.
    pub loss: f32,
    /// Bytes that may wait for the rate, in each direction; `None`: as many as pass in the time of
    /// both ways, or in 100 ms if that is longer, and at least 32,000.
    pub buffer: Option<u32>,
    /// Where the numbers come from.
    pub source: &'static str,
}

const NONE: Profile = Profile {
    name: "",
    kbit: None,
    delay_ms: (0.0, 0.0),
    jitter_ms: 0.0,
    loss: 0.0,
    buffer: None,
    source: "",
};

/// A profile whose source names the time of both ways.
const fn both(
    name: &'static str,
    down: u32,
    up: u32,
    rtt_ms: f32,
    source: &'static str,
) -> Profile {
    let half = rtt_ms / 2.0;
    Profile { name, kbit: Some((down, up)), delay_ms: (half, half), source, ..NONE }
}

/// A profile whose source names the time of one way.
const fn one(name: &'static str, down: u32, up: u32, ms: f32, source: &'static str) -> Profile {
    Profile { name, kbit: Some((down, up)), delay_ms: (ms, ms), source, ..NONE }
}

const CHROME: &str =
    "Chrome DevTools, NetworkManager.ts: its targets, without the factors for requests";
const LIGHTHOUSE: &str = "Lighthouse, core/config/constants.js";
const WEB_PAGE_TEST: &str = "WebPageTest, connectivity.ini.sample";
const FIREFOX: &str = "Firefox DevTools, network throttling profiles (least latency)";
const ATC: &str = "Augmented Traffic Control, utils/profiles";
const FIREBASE: &str = "Firebase Test Lab, as listed in Flank #1916";
const PATCHBAY: &str = "patchbay, link presets";
const STR0M: &str = "str0m-netem, presets";
const PICOQUIC: &str = "picoquic, satellite tests of the QUIC interop";
const INTEROP: &str = "QUIC interop runner, default link";
const LONG_RTT: &str = "QUIC interop runner, test longrtt";

/// All profiles, in the order in which `onramp wire --profiles` lists them.
pub const PROFILES: &[Profile] = &[
    both("3g-chrome", 500, 500, 400.0, CHROME),
    both("slow-4g-chrome", 1_600, 750, 150.0, CHROME),
    both("fast-4g-chrome", 9_000, 1_500, 60.0, CHROME),
    both("slow-4g-lighthouse", 1_638, 750, 150.0, LIGHTHOUSE),
    both("3g-lighthouse", 700, 700, 300.0, LIGHTHOUSE),
    both("desktop-lighthouse", 10_240, 10_240, 40.0, LIGHTHOUSE),
    both("dial-wpt", 49, 30, 120.0, WEB_PAGE_TEST),
    both("2g-wpt", 280, 256, 800.0, WEB_PAGE_TEST),
    both("edge-wpt", 240, 200, 840.0, WEB_PAGE_TEST),
    both("slow-3g-wpt", 400, 400, 400.0, WEB_PAGE_TEST),
    both("3g-wpt", 1_600, 768, 300.0, WEB_PAGE_TEST),
    both("fast-3g-wpt", 1_600, 768, 150.0, WEB_PAGE_TEST),
    both("4g-wpt", 9_000, 9_000, 170.0, WEB_PAGE_TEST),
    both("lte", 12_000, 12_000, 70.0, WEB_PAGE_TEST),
    both("dsl", 1_500, 384, 50.0, WEB_PAGE_TEST),
    both("cable", 5_000, 1_000, 28.0, WEB_PAGE_TEST),
    both("fios", 20_000, 5_000, 4.0, WEB_PAGE_TEST),
    one("gprs-firefox", 50, 20, 500.0, FIREFOX),
    one("2g-firefox", 250, 50, 300.0, FIREFOX),
    one("good-2g-firefox", 450, 150, 150.0, FIREFOX),
    one("3g-firefox", 750, 250, 100.0, FIREFOX),
    one("good-3g-firefox", 1_500, 750, 40.0, FIREFOX),
    one("lte-firefox", 4_000, 3_000, 20.0, FIREFOX),
    one("dsl-firefox", 2_000, 1_000, 5.0, FIREFOX),
    one("wifi-firefox", 30_000, 15_000, 2.0, FIREFOX),
    Profile { loss: 2.0, ..one("2g-rural-atc", 20, 18, 650.0, ATC) },
    one("2g-urban-atc", 35, 32, 650.0, ATC),
    Profile { delay_ms: (400.0, 440.0), ..one("edge-atc", 240, 200, 400.0, ATC) },
    one("3g-atc", 780, 330, 100.0, ATC),
    Profile { delay_ms: (90.0, 100.0), ..one("good-3g-atc", 850, 420, 90.0, ATC) },
    one("dsl-atc", 2_000, 256, 5.0, ATC),
    one("cable-atc", 6_000, 1_000, 2.0, ATC),
    Profile { loss: 0.1, ..one("lte-firebase", 16_000, 16_000, 40.0, FIREBASE) },
    Profile { loss: 0.15, ..one("poor-lte-firebase", 4_000, 4_000, 60.0, FIREBASE) },
    one("hspa-firebase", 4_000, 2_000, 60.0, FIREBASE),
    one("poor-hspa-firebase", 1_000, 500, 100.0, FIREBASE),
    Profile {
        name: "wifi",
        delay_ms: (5.0, 5.0),
        jitter_ms: 2.0,
        loss: 0.1,
        source: PATCHBAY,
        ..NONE
    },
    Profile { jitter_ms: 15.0, loss: 2.0, ..one("bad-wifi", 20_000, 20_000, 40.0, PATCHBAY) },
    Profile { jitter_ms: 30.0, loss: 2.0, ..one("3g", 2_000, 2_000, 100.0, PATCHBAY) },
    Profile {
        name: "leo",
        delay_ms: (40.0, 40.0),
        jitter_ms: 7.0,
        loss: 1.0,
        source: PATCHBAY,
        ..NONE
    },
    Profile { jitter_ms: 20.0, loss: 0.5, ..one("geo", 25_000, 25_000, 300.0, PATCHBAY) },
    Profile {
        jitter_ms: 2.0,
        buffer: Some(200_000),
        ..one("wifi-str0m", 100_000, 100_000, 5.0, STR0M)
    },
    Profile {
        jitter_ms: 15.0,
        loss: 2.0,
        buffer: Some(100_000),
        ..one("cellular-str0m", 30_000, 30_000, 50.0, STR0M)
    },
    one("geo-quic", 50_000, 10_000, 300.0, PICOQUIC),
    Profile { loss: 1.0, ..one("lossy-geo-quic", 20_000, 2_000, 300.0, PICOQUIC) },
    Profile { buffer: Some(25 * 1_514), ..one("quic-interop", 10_000, 10_000, 15.0, INTEROP) },
    Profile {
        buffer: Some(25 * 1_514),
        ..one("long-quic-interop", 10_000, 10_000, 750.0, LONG_RTT)
    },
];

/// Least number of bytes that may wait for a rate.
pub(crate) const BUFFER_MIN: u32 = 32_000;

impl Profile {
    /// Returns the profile with this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|profile| profile.name == name)
    }

    /// Returns the bytes that may wait for a rate of `kbit`, in kbit/s: `buffer`, or what its
    /// documentation says.
    #[must_use]
    pub fn buffer_bytes(&self, kbit: u32) -> u32 {
        let both_ms = f64::from(self.delay_ms.0 + self.delay_ms.1).max(100.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some MB")]
        let own = (f64::from(kbit) / 8.0 * both_ms) as u32;
        self.buffer.unwrap_or_else(|| own.max(BUFFER_MIN))
    }

    /// Returns the qdiscs of both directions, one behind the other: first from the client, then to
    /// the client. First comes the rate with its buffer, then the delay and the loss. `mtu` is the
    /// largest packet in bytes, Ethernet header not included.
    #[must_use]
    pub fn stages(&self, mtu: u32) -> [Vec<String>; 2] {
        let burst = mtu.saturating_add(crate::ETHERNET);
        let way = |kbit: Option<u32>, delay: f32| {
            let rate = kbit.map(|kbit| {
                let limit = self.buffer_bytes(kbit).max(burst.saturating_mul(2));
                format!("tbf rate {kbit}kbit burst {burst} limit {limit}")
            });
            let mut netem = format!("netem delay {delay}ms limit 1000000");
            if self.jitter_ms > 0.0 {
                netem = format!("netem delay {delay}ms {}ms limit 1000000", self.jitter_ms);
            }
            if self.loss > 0.0 {
                netem += &format!(" loss {}%", self.loss);
            }
            rate.into_iter().chain([netem]).collect()
        };
        let (down, up) = self.kbit.map_or((None, None), |(down, up)| (Some(down), Some(up)));
        [way(up, self.delay_ms.1), way(down, self.delay_ms.0)]
    }
}

/// Error: a qdisc of a [`series`] cannot be understood.
#[derive(Debug)]
pub struct StageError {
    /// Index of the qdisc.
    pub index: usize,
    /// What is wrong with it.
    pub error: Box<ConfigError>,
}

impl fmt::Display for StageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stage {}: {}", self.index + 1, self.error)
    }
}

impl std::error::Error for StageError {}

/// Makes the tree of these qdiscs, one behind the other: see the kind `series`.
///
/// # Errors
///
/// [`StageError`] says which stage is wrong, and why.
pub fn series<Q: AsRef<str>>(stages: &[Q]) -> Result<Setup, StageError> {
    let mut setup = Setup::default();
    let mut apply = |line: &str, index: usize| {
        setup.apply(line).map_err(|error| StageError { index, error: Box::new(error) })
    };
    if let [only] = stages {
        apply(&format!("qdisc add dev wire root {}", only.as_ref()), 0)?;
        return Ok(setup);
    }
    let root = format!("qdisc add dev wire root handle 1: series stages {}", stages.len());
    apply(&root, 0)?;
    for (index, qdisc) in stages.iter().enumerate() {
        let line = format!("qdisc add dev wire parent 1:{} {}", index + 1, qdisc.as_ref());
        apply(&line, index)?;
    }
    Ok(setup)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_profile_has_a_name_of_its_own_and_makes_trees() {
        for (index, profile) in PROFILES.iter().enumerate() {
            assert!(Profile::find(profile.name) == Some(&PROFILES[index]), "{}", profile.name);
            for stages in profile.stages(1_500) {
                let made = series(&stages);
                assert!(made.is_ok(), "{}: {stages:?}: {made:?}", profile.name);
            }
        }
        assert_eq!(Profile::find("5g"), None);
    }

    #[test]
    fn a_profile_is_a_rate_and_then_a_delay() {
        let dsl = Profile::find("dsl").expect("it is there");
        let [up, down] = dsl.stages(1_500);
        assert_eq!(
            up,
            ["tbf rate 384kbit burst 1514 limit 32000", "netem delay 25ms limit 1000000"]
        );
        assert_eq!(down[0], "tbf rate 1500kbit burst 1514 limit 32000");
        let wifi = Profile::find("wifi").expect("it is there");
        assert_eq!(wifi.stages(1_500)[0], ["netem delay 5ms 2ms limit 1000000 loss 0.1%"]);
        let geo = Profile::find("geo").expect("it is there");
        assert!(geo.stages(9_000)[0][0].contains("burst 9014"));
        assert_eq!(geo.stages(1_500)[0][0], "tbf rate 25000kbit burst 1514 limit 1875000");
    }

    #[test]
    fn what_is_wrong_is_at_its_place() {
        let error = series(&["pfifo", "netem delay"]).expect_err("no time");
        assert_eq!(error.index, 1);
        let setup = series(&["pfifo", "netem delay 1ms", "pfifo"]).expect("three stages");
        assert_eq!(setup.lines().len(), 4);
    }
}
