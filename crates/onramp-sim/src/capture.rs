//! Captures (pcap and pcapng) as sources of packets, as `onramp replay` plays them.
//!
//! ```no_run
//! use std::cell::RefCell;
//! use std::path::Path;
//!
//! use onramp_core::{Setup, Tree};
//! use onramp_dev::capture::{Advice, Blocks};
//! use onramp_sim::capture::Player;
//! use onramp_sim::{Sim, Wire};
//!
//! let blocks = Blocks::open(Path::new("uplink.pcap"), Advice::default())?;
//! let player = RefCell::new(Player::new(blocks));
//! let tree = Tree::of(&Setup::of("fq_codel".parse()?), 1514, 1).expect("it has a root");
//! let mut sim = Sim::new(Wire::new(tree, Some("10mbit".parse()?), 0));
//! sim.add(&player);
//! let dropped = sim.filter(|fate| fate.arrives.is_none()).count();
//! let (read, failed) = player.into_inner().into_read();
//! println!("{dropped} of {} packets were dropped", read.packets);
//! failed?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod frame;
mod player;

pub use self::frame::{Flow, mark};
pub use self::player::{Player, Read};

/// Largest number of flows that a player counts separately.
pub const FLOWS_MAX: usize = 1 << 16;
