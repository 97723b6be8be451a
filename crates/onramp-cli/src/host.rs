//! Destinations: how users write them, and advice if a destination cannot be reached.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use anyhow::{Result, anyhow};

/// A host name or an address, with a port, as the user wrote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    name: String,
    port: u16,
}

/// The address and port that a [`Host`] was resolved to.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    pub(crate) addr: SocketAddr,
    /// The host name that was resolved; `None` if the user gave an address.
    name: Option<String>,
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} ({})", self.addr),
            None => self.addr.fmt(f),
        }
    }
}

impl Host {
    /// Parses `HOST:PORT`. The port may be missing if there is a default port. An IPv6 address that
    /// is followed by a port must stand in brackets.
    pub(crate) fn parse(text: &str, port_default: Option<u16>) -> Result<Self, String> {
        if let (Ok(ip), Some(port)) = (text.parse::<IpAddr>(), port_default) {
            return Ok(Self { name: ip.to_string(), port });
        }
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) if !name.ends_with(':') && !port.contains(']') => (name, Some(port)),
            _ => (text, None),
        };
        let name = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name);
        if name.is_empty() {
            return Err("the host is missing".to_owned());
        }
        let strange = |c: char| c.is_whitespace() || c.is_control() || "/@?#[]".contains(c);
        if let Some(strange) = name.chars().find(|c| strange(*c)) {
            return Err(format!("{name:?} is not a host: it must not contain {strange:?}"));
        }
        let port = match port.map(str::parse::<u16>) {
            Some(Ok(0)) => return Err("port 0 cannot be a destination".to_owned()),
            Some(Ok(port)) => port,
            Some(Err(_)) => {
                let port = port.unwrap_or_default();
                return Err(format!("{port:?} is not a port (1 to 65535)"));
            }
            None => port_default.ok_or("the port is missing")?,
        };
        Ok(Self { name: name.to_owned(), port })
    }

    /// Resolves the host name and returns the first of its addresses.
    pub(crate) fn resolve(&self) -> Result<Destination> {
        let name = &self.name;
        let advice = "check the name, or give an address";
        let mut found = (name.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|error| anyhow!("cannot resolve {name:?}: {error}; {advice}"))?;
        let first = found.next();
        let addr = first.ok_or_else(|| anyhow!("{name:?} has no address; {advice}"))?;
        let named = name.parse::<IpAddr>().is_err();
        Ok(Destination { addr, name: named.then(|| name.clone()) })
    }
}

/// Returns what an error of sending to a destination means, with advice for the user.
pub(crate) fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "no program listens there; start a receiver first, or check host and port"
        }
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            "there is no route to it; check the address, and the routes (`ip route`)"
        }
        io::ErrorKind::PermissionDenied => {
            "the kernel forbids it; use no broadcast address, and check the firewall"
        }
        io::ErrorKind::InvalidInput => {
            "a link-local address needs its interface, such as fe80::1%eth0"
        }
        io::ErrorKind::AddrNotAvailable => "this machine has no address of that family",
        _ => "check the address",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str, port: Option<u16>) -> Result<(String, u16), String> {
        Host::parse(text, port).map(|host| (host.name, host.port))
    }

    #[test]
    fn hosts_and_ports() {
        let right = [
            ("127.0.0.1:4000", None, "127.0.0.1", 4000),
            ("[::1]:4000", None, "::1", 4000),
            ("[fe80::1%lo]:4000", None, "fe80::1%lo", 4000),
            ("host.example:9", None, "host.example", 9),
            ("host.example", Some(9), "host.example", 9),
            ("host.example:80", Some(9), "host.example", 80),
            ("192.0.2.7", Some(9), "192.0.2.7", 9),
            ("::1", Some(9), "::1", 9),
            ("[::1]", Some(9), "::1", 9),
        ];
        for (text, default, name, port) in right {
            assert_eq!(parsed(text, default), Ok((name.to_owned(), port)), "{text}");
        }
        let wrong = ["127.0.0.1", "a:", "a:0", "a:70000", ":4000", "[::1]", "", "a b:1", "a/b:1"];
        for text in wrong {
            assert!(parsed(text, None).is_err(), "{text}");
        }
        for text in ["", "a:", "192.0.2.7:0", "udp://a", "a@b"] {
            assert!(parsed(text, Some(9)).is_err(), "{text}");
        }
    }

    #[test]
    fn a_destination_says_what_it_was_found_by() {
        let resolved = |text: &str| Host::parse(text, Some(9)).expect("a host").resolve();
        assert_eq!(resolved("127.0.0.1").expect("an address").to_string(), "127.0.0.1:9");
        let local = resolved("localhost").expect("every machine has it");
        assert!(local.addr.ip().is_loopback() && local.to_string().starts_with("localhost ("));
    }
}
