//! HTTP responses.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};

/// A response of this server.
pub(crate) type Response = hyper::Response<BoxBody<Bytes, Infallible>>;

/// Content type of JSON.
pub(super) const JSON: &str = "application/json";

/// Makes a response with a complete body.
pub(crate) fn whole(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Response {
    with(status, kind, Full::new(text.into()).boxed())
}

/// Makes a response with the headers that all responses have: browsers must not cache it, embed it
/// or guess its type.
pub(super) fn with(
    status: StatusCode,
    kind: &'static str,
    body: BoxBody<Bytes, Infallible>,
) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Makes an error response.
pub(super) fn error(status: StatusCode, why: &str) -> Response {
    let document = serde_json::json!({"error": why});
    whole(status, JSON, document.to_string() + "\n")
}

/// Makes the response that lists the allowed methods.
pub(super) fn not_allowed(methods: &[Method]) -> Response {
    let allowed = methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, &format!("only {allowed}"));
    if let Ok(allowed) = HeaderValue::from_str(&allowed) {
        response.headers_mut().insert(header::ALLOW, allowed);
    }
    response
}
