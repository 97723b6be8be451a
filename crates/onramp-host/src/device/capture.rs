//! Devices that write capture files, and send the packets of others.

use std::io;
use std::sync::Arc;

use onramp_dev::capture::{CaptureFile, CaptureOptions, CaptureReceiver, PlayOptions};

use super::feeder::Frames;
use super::frames::seed;
use super::link_end::{Files, Switched};
use super::socket::ETHERNET;
use super::{End, LinkEnd, Refusal, Request, invalid};

pub(super) fn pcap(request: &Request<'_>) -> Result<Vec<End>, Refusal> {
    let one_of = |keys: [&str; 2]| match keys.map(|key| request.given.file(key)) {
        [Some(_), Some(_)] => Err(invalid(&format!("give {} or {}, not both", keys[0], keys[1]))),
        [one, other] => Ok((one.or(other), other.is_some())),
    };
    let (Some(path), replace) = one_of(["file", "replace"])? else {
        return Err(invalid("give the file to write: file /tmp/out.pcapng"));
    };
    if request.queues[0] > 1 {
        return Err(invalid("such a device has one queue: leave out numtxqueues"));
    }
    // A file that cannot be read must not cost the contents of the one to write.
    let mut from = match one_of(["read", "fast"])? {
        (Some(path), fast) => {
            let opened = CaptureReceiver::open(path, PlayOptions { fast, seed: seed() });
            Some(opened.map_err(|error| refused(&error))?)
        }
        (None, _) => None,
    };
    let mtu = request.mtu[0].saturating_add(ETHERNET);
    let options = CaptureOptions { mtu, replace, ..CaptureOptions::default() };
    let device = CaptureFile::create(path, options).map_err(|error| refused(&error))?;
    let read = from.as_mut().map(|from| from.hold().map(|start| (start, from.stats())));
    let read = read.transpose().map_err(|error| refused(&error))?;
    let end = Arc::new(LinkEnd::with_files(Files { written: device.stats(), read }));
    let frames = from.map(|from| Frames { from: vec![Box::new(from)], at: end.clone() });
    let queues: Vec<Box<dyn onramp_core::Device>> =
        vec![Box::new(Switched::new(end.clone(), device))];
    Ok(vec![End { queues, end, listener: None, frames }])
}

fn refused(error: &io::Error) -> Refusal {
    let said = match error.kind() {
        io::ErrorKind::AlreadyExists => "File exists",
        io::ErrorKind::PermissionDenied => "Permission denied",
        io::ErrorKind::NotFound => "No such file or directory",
        io::ErrorKind::ResourceBusy => "Device or resource busy",
        io::ErrorKind::StorageFull => "No space left on device",
        _ => "Invalid argument",
    };
    Refusal::new(&format!("RTNETLINK answers: {said}"), error.to_string())
}
