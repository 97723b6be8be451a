//! Capture files, in the formats pcap and pcapng: a device that writes them, a receiver that plays
//! them, and the readers and writers of their blocks.
//!
//! Source: draft-ietf-opsawg-pcap; draft-ietf-opsawg-pcapng;
//! <https://www.tcpdump.org/linktypes.html>.

mod blocks;
mod file;
mod link;
mod pcapng;
mod play;
mod records;

pub use self::blocks::{Advice, Beginning, Blocks, Broken, begins};
pub use self::file::{CaptureFile, CaptureFormat, CaptureOptions, CaptureStats};
pub use self::link::{Head, Link};
pub use self::pcapng::{Block, Direction, PACKET};
pub use self::play::{CaptureReceiver, CaptureStart, PlayOptions, PlayStats};
pub use self::records::{Interface, Interfaces, Record};
