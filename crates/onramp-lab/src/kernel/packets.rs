//! A sending thread on the kernel's side of the comparison: it gives frames to the device through
//! the qdisc, many per system call (`AF_PACKET` without `PACKET_QDISC_BYPASS`).

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, bind, socket};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, sendmmsg};

use super::bed::{Bed, Laid};
use super::{PACKET, Trial};
use crate::Error;
use crate::measure::PhaseCell;
use crate::thread_group::{ThreadGroup, Watched};

/// Number of frames that a thread gives to the kernel per system call.
const BATCH: usize = 64;

/// Counts of the frames that a thread offered to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Calls {
    /// Number of offered frames that the kernel accepted.
    offered: u64,
    /// Number of offered frames that the kernel refused because the qdisc had dropped them.
    refused: u64,
}

/// Measures the installed qdisc; one thread on each processor of `cpus` sends through it.
pub(super) fn trial(laid: &Laid<'_>, cpus: &[usize], span: Duration) -> Result<Trial, Error> {
    let bed = laid.bed();
    let group = ThreadGroup::default();
    let before = bed.taken()?;
    let work = |number: usize| send(bed, number, &group.phase);
    let Watched { given: calls, window, seen } =
        group.run_bound(cpus, span, || bed.taken(), work)?;
    let held = laid.settled()?;
    let taken = bed.taken()? - before;
    let offered: u64 = calls.iter().map(|calls| calls.offered).sum();
    if offered != taken + held.drops + held.packets {
        let refused: u64 = calls.iter().map(|calls| calls.refused).sum();
        return Err(Error::Conservation(format!(
            "{offered} offered to the kernel ({refused} refused), but {taken} taken by the \
             device, {} dropped and {} held by the qdisc",
            held.drops, held.packets
        )));
    }
    Ok(Trial::of(window, seen, taken, held.drops))
}

fn send(bed: &Bed, number: usize, phase: &PhaseCell) -> Result<Calls, Error> {
    let socket = open(bed).map_err(|errno| {
        Error::Kernel(format!("cannot open a packet socket on {}: {errno}", bed.device()))
    })?;
    let frame = frame(number);
    let slices = [IoSlice::new(&frame)];
    let mut controls: Vec<SendAncillaryBuffer<'_, '_, '_>> = Vec::new();
    controls.resize_with(BATCH, SendAncillaryBuffer::default);
    let mut messages: Vec<MMsgHdr<'_>> =
        controls.iter_mut().map(|control| MMsgHdr::new(&slices, control)).collect();
    let mut calls = Calls::default();
    while !phase.is_stop() {
        let sent = sendmmsg(&socket, &mut messages, SendFlags::empty());
        calls.note(sent.map_err(rustix::io::Errno::raw_os_error))?;
    }
    Ok(calls)
}

impl Calls {
    /// Counts the result of one system call for a batch of frames. The result is the number of
    /// frames sent, or the error of the first frame.
    fn note(&mut self, sent: Result<usize, i32>) -> Result<(), Error> {
        match sent {
            Ok(BATCH) => self.offered += BATCH as u64,
            // `sendmmsg` stopped at a frame that failed, and returned the number of frames before
            // this frame, but no error. Count the frame as dropped by the qdisc: no signal reaches
            // this thread, and a lasting error will also fail the next call.
            Ok(sent) => {
                self.offered += sent as u64 + 1;
                self.refused += 1;
            }
            Err(error) if error == Errno::ENOBUFS as i32 => {
                self.offered += 1;
                self.refused += 1;
            }
            Err(error) => {
                let why = io::Error::from_raw_os_error(error);
                return Err(Error::Kernel(format!("cannot send on a packet socket: {why}")));
            }
        }
        Ok(())
    }
}

/// Opens a socket that sends whole frames and receives none.
fn open(bed: &Bed) -> Result<OwnedFd, Errno> {
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
    bind(socket.as_raw_fd(), &bed.address)?;
    Ok(socket)
}

/// Returns a frame of the sender's own flow: a UDP datagram in IPv4 in Ethernet, between addresses
/// of the block for benchmarks (RFC 2544, RFC 6890). No program reads the datagram, so its
/// checksums stay empty.
fn frame(number: usize) -> [u8; PACKET] {
    let mut frame = [0; PACKET];
    let [high, low] = u16::try_from(number).unwrap_or(u16::MAX).to_be_bytes();
    let port = |high: u8| [0x40 | (high & 0x3f), low];
    let length = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&length(PACKET - 14));
    (frame[22], frame[23]) = (64, 17);
    frame[26..30].copy_from_slice(&[198, 18, 0, 1]);
    frame[30..34].copy_from_slice(&[198, 18, 0, 2]);
    frame[34..36].copy_from_slice(&port(high));
    frame[36..38].copy_from_slice(&[0, 9]);
    frame[38..40].copy_from_slice(&length(PACKET - 34));
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_frames_were_offered_and_others_were_not() {
        let mut calls = Calls::default();
        let mut note = |sent| calls.note(sent).map(|()| calls);
        let counts = |offered, refused| Calls { offered, refused };
        assert_eq!(note(Ok(BATCH)).expect("all went"), counts(64, 0));
        assert_eq!(note(Ok(10)).expect("the eleventh did not"), counts(75, 1));
        assert_eq!(note(Err(Errno::ENOBUFS as i32)).expect("the first did not"), counts(76, 2));
        let error = note(Err(Errno::ENETDOWN as i32)).expect_err("not a matter of load");
        assert!(error.to_string().contains("packet socket"), "{error}");
    }

    #[test]
    fn senders_have_flows_of_their_own() {
        let (first, second) = (frame(0), frame(1));
        assert_eq!(first[..34], second[..34]);
        assert_ne!(first[34..36], second[34..36]);
        assert_eq!((first[16..18].to_vec(), first[38..40].to_vec()), (vec![0, 106], vec![0, 86]));
    }
}
