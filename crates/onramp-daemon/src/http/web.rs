//! The web page: a single file. It needs no other file, and its security policy forbids the browser
//! to load one.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use sha2::{Digest as _, Sha256};

use super::reply::{self, Response};

const FRAME: &str = include_str!("web/page.html");
/// The part of the page that shows the fleet.
const FLEET: &str = include_str!("web/fleet.html");
const STYLE: &str = include_str!("web/page.css");
const SCRIPT: &str = concat!(include_str!("web/page.js"), include_str!("web/fleet.js"));

/// The complete web page and its content security policy.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    text: String,
    policy: String,
}

impl Page {
    /// Builds the page; if `control` is true, the page has a command line, and if `fleet` is true,
    /// a table of the fleet.
    pub(crate) fn new(control: bool, fleet: bool) -> Self {
        let control = if control { "yes" } else { "no" };
        let text = FRAME
            .replace("{control}", control)
            .replace("{fleet}", if fleet { FLEET } else { "" })
            .replace("{version}", env!("CARGO_PKG_VERSION"))
            .replace("{style}", STYLE)
            .replace("{script}", SCRIPT);
        let hash = |part: &str| STANDARD.encode(Sha256::digest(part));
        // The security policy names the hashes of the page's own script and style, so the browser
        // runs no code that somebody else inserted into the page.
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; \
             connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
             frame-ancestors 'none'",
            hash(SCRIPT),
            hash(STYLE)
        );
        Self { text, policy }
    }

    pub(crate) fn response(&self) -> Response {
        let kind = "text/html; charset=utf-8";
        let mut response = reply::whole(StatusCode::OK, kind, self.text.clone());
        if let Ok(policy) = HeaderValue::from_str(&self.policy) {
            response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_fleet_the_page_has_no_table_of_it() {
        let table = "id=\"fleet\"";
        assert!(Page::new(true, true).text.contains(table));
        assert!(!Page::new(true, false).text.contains(table));
    }

    #[test]
    fn the_page_needs_nothing_else() {
        let page = Page::new(true, true);
        assert!(page.text.contains("data-control=\"yes\""));
        for part in ["{style}", "{script}", "{version}", "{control}", "{fleet}"] {
            assert!(!page.text.contains(part), "{part}");
        }
        for outside in ["src=", "http://", "https://", "@import", "url(", "innerHTML", "eval("] {
            let namespace = page.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!namespace.contains(outside), "{outside}");
        }
        assert!(!page.policy.contains("unsafe"), "{}", page.policy);
        // The page has no `style` or `onclick` attributes, because its security policy would make
        // the browser ignore them.
        assert!(!page.text.contains(" style=\"") && !page.text.contains(" onclick="));
    }
}
