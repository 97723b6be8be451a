//! Frames of the caller's: what their headers say, and marks in them.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use onramp::{Packet, frame};

use super::memory::{array, put, wanted};
use crate::abi::{ONRAMP_HEAD_MAX, ONRAMP_LAYER_NONE, Pkt};
use crate::error::{Error, Result, entry};
use crate::shaper;

/// Bytes of a frame in which its headers lie. Headers that reach further are not believed.
const HEADERS_MAX: usize = 512;

thread_local! {
    /// The packet into which this thread copies headers to read them.
    static SCRATCH: Cell<Option<Packet>> = const { Cell::new(None) };
}

/// Calls `f` with a packet that begins as `frame` does.
fn with_headers<R>(layer: c_int, frame: &[u8], f: impl FnOnce(&mut Packet) -> R) -> Result<R> {
    let known = u8::try_from(layer).ok().filter(|layer| *layer != ONRAMP_LAYER_NONE);
    let Some(layer) = known.and_then(shaper::layer) else {
        let text = format!("layer is {layer}; expected ONRAMP_LAYER_IP or ONRAMP_LAYER_ETHERNET");
        return Err(Error::invalid(text));
    };
    let taken = SCRATCH.try_with(Cell::take).ok().flatten();
    let mut packet = taken.unwrap_or_else(|| Packet::with_payload(&[0; HEADERS_MAX]));
    packet.set_payload(&frame[..frame.len().min(HEADERS_MAX)]);
    packet.set_layer(layer);
    let read = f(&mut packet);
    // A thread that ends has no scratch any more: its destructors may still call this.
    let _ = SCRATCH.try_with(|scratch| scratch.set(Some(packet)));
    Ok(read)
}

/// Fills `pkt` from the headers of a frame that begins at `layer` (`ONRAMP_LAYER_IP` or
/// `ONRAMP_LAYER_ETHERNET`): `flow`, a hash of addresses, protocol, ports and VLAN; `len`, that of
/// the frame; `ecn`; `priority`, from the type of service, as Linux derives it; `head`, which
/// points to the frame, so keep the frame until the packet was enqueued; and `layer`. All other
/// fields are 0. With a random `seed`, it is hard to choose addresses that share a flow with
/// others.
///
/// Returns 0.
///
/// # Safety
///
/// `pkt` may be written, and `len` bytes at `frame` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_pkt_of_frame(
    pkt: *mut Pkt,
    layer: c_int,
    frame: *const c_void,
    len: usize,
    seed: u64,
) -> c_int {
    entry(|| {
        wanted(pkt, "pkt")?;
        // SAFETY: as the caller promises.
        let bytes = unsafe { array(frame.cast::<u8>(), len, "frame") }?;
        let Ok(length) = u32::try_from(len) else {
            return Err(Error::new(libc::EMSGSIZE, format!("a frame of {len} bytes is too long")));
        };
        let head_len = len.min(ONRAMP_HEAD_MAX as usize);
        let read = with_headers(layer, bytes, |packet| {
            packet.gso_size = 0;
            frame::describe(packet, seed);
            Pkt {
                cookie: 0,
                flow: packet.flow,
                txtime_ns: 0,
                pacing_rate: 0,
                enqueued_ns: 0,
                head: frame,
                len: length,
                priority: packet.priority,
                mark: 0,
                gso_size: 0,
                head_len: u16::try_from(head_len).unwrap_or(0),
                layer: shaper::number(packet.layer()),
                ecn: packet.ecn,
                drop_reason: 0,
                made: 0,
                reserved: 0,
            }
        })?;
        // SAFETY: as the caller promises.
        unsafe { put(pkt, read) };
        Ok(0)
    })
}

/// Writes "congestion experienced" (CE) into the IP header of a frame, and corrects the checksum of
/// an IPv4 header. Call it for a frame whose packet left the tree with `ecn` 3 and came with 1 or
/// 2.
///
/// Returns 1, or 0 if the frame is not IP or not ECN-capable, and was not changed.
///
/// # Safety
///
/// `len` bytes at `frame` may be read and written, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_frame_mark_ce(
    layer: c_int,
    frame: *mut c_void,
    len: usize,
) -> c_int {
    entry(|| {
        // SAFETY: as the caller promises.
        let bytes = unsafe { array(frame.cast_const().cast::<u8>(), len, "frame") }?;
        let mut head = [0; HEADERS_MAX];
        let marked = with_headers(layer, bytes, |packet| {
            let marked = frame::write_ce(packet);
            head[..packet.payload().len()].copy_from_slice(packet.payload());
            marked
        })?;
        if marked {
            let n = len.min(HEADERS_MAX);
            // SAFETY: as the caller promises; `bytes`, which borrows the frame, is not used again.
            unsafe { std::ptr::copy_nonoverlapping(head.as_ptr(), frame.cast::<u8>(), n) };
        }
        Ok(usize::from(marked))
    })
}
