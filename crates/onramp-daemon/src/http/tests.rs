//! Tests of the HTTP server's queries and limits.

use super::*;

/// The default limits are those that docs/metrics.md documents.
#[test]
fn limits_are_those_that_are_documented() {
    let Limits { connections, listeners, patience, head_bytes, body_bytes } = Limits::default();
    assert_eq!((connections, listeners, patience.as_secs()), (1_024, 256, 20));
    assert_eq!((head_bytes, body_bytes), (16 << 10, 64 << 10));
}

/// Where few files may be open, few of them are connections, and some connections can always ask
/// something else than the event stream.
#[test]
fn connections_leave_files_for_others() {
    let within = |files| {
        let Limits { connections, listeners, .. } = Limits::default().within(files);
        (connections, listeners)
    };
    for (files, connections, listeners) in
        [(4_096, 1_024, 256), (4_092, 1_023, 256), (1_024, 256, 64), (64, 16, 4), (0, 1, 1)]
    {
        assert_eq!(within(Some(files)), (connections, listeners), "{files} files");
    }
    assert_eq!((within(None), within(Some(u64::MAX))), ((1_024, 256), (1_024, 256)));
}

#[test]
fn a_query_selects() {
    let all = "device=d0&filter=fq+8002%3A&keep=d0/1&limit=20&sort=p99";
    let expected = Query {
        device: Some("d0".into()),
        filter: Some("fq 8002:".into()),
        sort: Sort::P99,
        limit: Some(20),
        keep: Some("d0/1".into()),
    };
    assert_eq!(selection(all), Ok(expected));
    assert_eq!(selection(""), Ok(Query::default()));
    for sort in Sort::ALL {
        let query = Query { sort, ..Query::default() };
        assert_eq!(selection(&format!("sort={}", sort.name())), Ok(query));
    }
    let names = "tree, rate, packets, backlog, p99, drops";
    for (query, why) in [
        ("limit=-1", "limit=-1: expected a number"),
        ("limit=", "limit=: expected a number"),
        ("sort=size", &format!("sort=size: expected one of {names}")),
        (
            "colour=red",
            "unknown parameter \"colour\"; expected device, filter, keep, limit or sort",
        ),
    ] {
        assert_eq!(selection(query), Err((StatusCode::BAD_REQUEST, why.to_owned())));
    }
}

/// A request that fails because of a fault inside the server is answered with status 500, whatever
/// the fault was.
#[test]
fn what_breaks_is_our_own_fault() {
    let (status, why) = broken("it died");
    assert_eq!((status.as_u16(), why.as_str()), (500, "it died"));
}
