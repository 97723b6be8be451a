//! Makes a veth pair: two interfaces, of which each receives what the other sends.
//!
//! This is the only request to `rtnetlink` here. No crate for it: several incompatible ones
//! circulate, and the request is 30 lines.
//!
//! Source: `netlink(7)`, `rtnetlink(7)`; Linux `include/uapi/linux/if_link.h`,
//! `include/uapi/linux/veth.h`.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

/// Attribute of the data of a link of the kind `veth`: the other end. (Not in the crate `libc`.)
const VETH_INFO_PEER: u16 = 1;
/// Length of a `nlmsghdr` and of an `ifinfomsg`, in bytes.
const HEADER: usize = 16;

/// Makes a veth pair whose one end is `name` in the calling thread's network namespace, and whose
/// other end is `peer` in the namespace of the descriptor `space` (of a file such as
/// `/proc/thread-self/ns/net`).
///
/// # Errors
///
/// The error of the kernel: EEXIST if a name is taken, EPERM without `CAP_NET_ADMIN` in one of the
/// namespaces, EOPNOTSUPP if it has no veth.
pub(crate) fn add(name: &str, peer: &str, space: &impl AsFd) -> io::Result<()> {
    let kind = SockType::Raw;
    let protocol = SockProtocol::NetlinkRoute;
    let fd = socket(AddressFamily::Netlink, kind, SockFlag::SOCK_CLOEXEC, protocol)?;
    send(fd.as_raw_fd(), &request(name, peer, space), MsgFlags::empty())?;
    // The kernel answers before `send` returns, with the error and the request's header.
    let mut answer = [0; 4_096];
    let length = recv(fd.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT)?;
    verdict(&answer[..length])
}

/// Reads the answer of the kernel: an `nlmsghdr` and an `nlmsgerr`.
fn verdict(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).and_then(<[u8]>::as_array).map(|two| u16::from_ne_bytes(*two));
    let code = answer.get(HEADER..).and_then(<[u8]>::first_chunk).map(|of| i32::from_ne_bytes(*of));
    match (kind.map(i32::from), code) {
        (Some(libc::NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(libc::NLMSG_ERROR), Some(code)) => Err(Errno::from_raw(-code).into()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is no answer")),
    }
}

/// Makes the request for [`add`].
fn request(name: &str, peer: &str, space: &impl AsFd) -> Vec<u8> {
    let mut message = Message(Vec::new());
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    // A `nlmsghdr`, whose length comes last; number and sender may be 0.
    message.0.extend([0; 4]);
    message.0.extend(libc::RTM_NEWLINK.to_ne_bytes());
    message.0.extend(u16::try_from(flags).expect("16 bits").to_ne_bytes());
    message.0.extend([0; 8]);
    message.link();
    message.text(libc::IFLA_IFNAME, name);
    message.attribute(libc::IFLA_LINKINFO, |message| {
        message.text(libc::IFLA_INFO_KIND, "veth");
        message.attribute(libc::IFLA_INFO_DATA, |message| {
            message.attribute(VETH_INFO_PEER, |message| {
                message.link();
                message.text(libc::IFLA_IFNAME, peer);
                let space = space.as_fd().as_raw_fd().to_ne_bytes();
                message.attribute(libc::IFLA_NET_NS_FD, |message| message.0.extend(space));
            });
        });
    });
    let length = u32::try_from(message.0.len()).expect("a short message");
    message.0[..4].copy_from_slice(&length.to_ne_bytes());
    message.0
}

struct Message(Vec<u8>);

impl Message {
    /// Appends an `ifinfomsg` that says nothing.
    fn link(&mut self) {
        self.0.extend([0; HEADER]);
    }

    /// Appends an attribute: its length, its kind, what `body` appends, and bytes up to a multiple
    /// of four.
    fn attribute(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.0.extend([0; 4]);
        body(self);
        let length = u16::try_from(self.0.len() - start).expect("a short attribute");
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Appends an attribute that is a string, with its final zero.
    fn text(&mut self, kind: u16, text: &str) {
        self.attribute(kind, |message| {
            message.0.extend(text.as_bytes());
            message.0.push(0);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The request, byte for byte, as `ip link add c type veth peer name wire0 netns ...` sends it.
    #[test]
    #[cfg(target_endian = "little")]
    fn a_request_is_nested() {
        let message = request("c", "wire0", &io::stdin());
        let mut expected = vec![100, 0, 0, 0, 16, 0, 5, 6];
        expected.extend([0; 8 + 16]);
        expected.extend([6, 0, 3, 0, b'c', 0, 0, 0]);
        expected.extend([60, 0, 18, 0]);
        expected.extend([9, 0, 1, 0, b'v', b'e', b't', b'h', 0, 0, 0, 0]);
        expected.extend([44, 0, 2, 0, 40, 0, 1, 0]);
        expected.extend([0; 16]);
        expected.extend([10, 0, 3, 0, b'w', b'i', b'r', b'e', b'0', 0, 0, 0]);
        expected.extend([8, 0, 28, 0, 0, 0, 0, 0]);
        assert_eq!(message, expected);
    }

    #[test]
    fn an_answer_is_read() {
        let answer = |kind: u16, code: i32| {
            let mut answer = vec![0; HEADER];
            answer[4..6].copy_from_slice(&kind.to_ne_bytes());
            answer.extend(code.to_ne_bytes());
            answer
        };
        verdict(&answer(2, 0)).expect("done");
        let error = verdict(&answer(2, -17)).expect_err("it exists");
        assert_eq!(error.raw_os_error(), Some(17));
        verdict(&answer(3, 0)).expect_err("the end of a list");
        for length in [0, 5, HEADER, HEADER + 3] {
            verdict(&answer(2, 0)[..length]).expect_err("too short");
        }
    }
}
