//! Protection against web pages of other sites.
//!
//! A page of another site may make a browser send requests to this server, but the page cannot read
//! the answers. Without asking this server first (CORS preflight), the browser sends only "simple"
//! requests. A command is not a simple request, because its content type is JSON. A page may also
//! make its own host name resolve to this server's address (DNS rebinding), so that the browser
//! takes the page and this server for the same site. But then the browser sends that host name in
//! the `Host` header.

use std::net::{IpAddr, SocketAddr};

use hyper::header::{self, HeaderMap, HeaderName};
use hyper::{StatusCode, http::uri::Authority};

/// If this server listens on a loopback address: refuses requests whose `Host` header names neither
/// `localhost` nor a loopback address.
pub(super) fn host(headers: &HeaderMap, local: SocketAddr) -> Result<(), &'static str> {
    if !local.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    match named(headers) {
        // Old programs (HTTP/1.0) send no `Host` header, and are accepted.
        None if !headers.contains_key(header::HOST) => Ok(()),
        Some(Named::Localhost) => Ok(()),
        Some(Named::Address(address)) if address.to_canonical().is_loopback() => Ok(()),
        _ => Err("wrong host name: address this server as 127.0.0.1 or as localhost"),
    }
}

/// Refuses a command unless it comes from this server's own page, or from a program that is no web
/// page at all.
pub(super) fn command(headers: &HeaderMap, local: SocketAddr) -> Result<(), (StatusCode, String)> {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let kind = text(header::CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let why = "a command must have the content type application/json";
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, why.to_owned()));
    }
    let forbidden = |why: &str| Err((StatusCode::FORBIDDEN, why.to_owned()));
    // Anybody may own a host name and make it resolve to this server's address. So a command is
    // accepted only if its `Host` header is an address or `localhost`.
    if named(headers).is_none() {
        return forbidden(&format!(
            "commands are accepted only at the address of this host: {}",
            local.ip()
        ));
    }
    let own = format!("http://{}", text(header::HOST).unwrap_or_default());
    if text(header::ORIGIN).is_some_and(|origin| !origin.eq_ignore_ascii_case(&own)) {
        return forbidden("a command comes from the page of this host, not from that of another");
    }
    let site = text(HeaderName::from_static("sec-fetch-site"));
    if site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return forbidden("a command comes from the page of this host, not from that of another");
    }
    Ok(())
}

/// A `Host` header of `localhost` or an IP address. Any other value may be a host name that belongs
/// to another site.
enum Named {
    Localhost,
    Address(IpAddr),
}

fn named(headers: &HeaderMap) -> Option<Named> {
    let mut all = headers.get_all(header::HOST).iter();
    let authority: Authority = all.next()?.to_str().ok()?.parse().ok()?;
    if all.next().is_some() || authority.as_str().contains('@') {
        return None;
    }
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    if name.eq_ignore_ascii_case("localhost") {
        return Some(Named::Localhost);
    }
    name.parse().ok().map(Named::Address)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair =
            |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        list.iter().map(pair).collect()
    }

    #[test]
    fn on_loopback_nobody_comes_by_a_foreign_name() {
        let here: SocketAddr = "127.0.0.1:9000".parse().expect("an address");
        let mapped: SocketAddr = "[::ffff:127.0.0.1]:9000".parse().expect("an address");
        let outside: SocketAddr = "192.0.2.1:9000".parse().expect("an address");
        for name in ["localhost", "LOCALHOST:9000", "127.0.0.1:9000", "[::1]:9000", "127.1.2.3"] {
            assert_eq!(host(&headers(&[("host", name)]), here), Ok(()), "{name}");
        }
        let foreign =
            ["evil.example", "localhost.evil.example", "192.0.2.1", "a@localhost", "127.0.0.1.x"];
        for name in foreign {
            assert!(host(&headers(&[("host", name)]), here).is_err(), "{name}");
            assert!(host(&headers(&[("host", name)]), mapped).is_err(), "{name}");
            assert_eq!(host(&headers(&[("host", name)]), outside), Ok(()), "{name}");
        }
        let twice = headers(&[("host", "localhost"), ("host", "evil.example")]);
        assert!(host(&twice, here).is_err());
        assert_eq!(host(&headers(&[]), here), Ok(()));
    }

    #[test]
    fn commands_come_from_our_page() {
        let here: SocketAddr = "192.0.2.1:9000".parse().expect("an address");
        let json = ("content-type", "application/json; charset=utf-8");
        let own = ("host", "192.0.2.1:9000");
        let status = |list: &[(&'static str, &'static str)]| {
            command(&headers(list), here).err().map(|(status, _)| status.as_u16())
        };
        assert_eq!(status(&[json, own]), None);
        assert_eq!(status(&[json, own, ("origin", "http://192.0.2.1:9000")]), None);
        assert_eq!(status(&[json, own, ("sec-fetch-site", "same-origin")]), None);
        assert_eq!(status(&[own]), Some(415));
        assert_eq!(status(&[own, ("content-type", "text/plain")]), Some(415));
        assert_eq!(status(&[json]), Some(403));
        assert_eq!(status(&[json, ("host", "evil.example:9000")]), Some(403));
        for origin in ["http://evil.example", "null", "https://192.0.2.1:9000", "http://192.0.2.1"]
        {
            let list: Vec<_> = [json, own].into_iter().chain([("origin", origin)]).collect();
            assert_eq!(status(&list), Some(403), "{origin}");
        }
        assert_eq!(status(&[json, own, ("sec-fetch-site", "same-site")]), Some(403));
    }
}
