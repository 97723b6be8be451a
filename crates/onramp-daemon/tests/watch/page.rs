//! The web page in a browser, in light and dark colours and at different widths.

use std::collections::HashSet;

use super::chromium::Browser;
use super::made_up::MadeUp;
use super::serve::Server;
use super::tool::{have, until};

fn browser() -> Option<Browser> {
    have("chromium", "chromium").then(Browser::start)
}

/// Opens the web page of a server in a browser, and waits until the page shows rates.
fn open(browser: &mut Browser, server: &Server) {
    browser.open(&format!("http://{}/", server.address));
    until("figures", || {
        let rate = browser.text("#rows tr td:nth-child(3)");
        rate.contains("bit").then_some(())
    });
}

#[test]
fn the_tree_and_its_figures() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start(MadeUp::default(), false);
    open(&mut browser, &server);
    let names = browser.texts("#rows .name");
    let expected = ["uplinkudp", "htb1:", "class1:1", "class1:10fleet", "fq_codel10:"];
    assert_eq!(names[..5], expected, "{names:?}");
    assert!(names.contains(&"lan0veth8 queues".to_owned()), "{names:?}");
    assert!(names.contains(&"spare0dummydown".to_owned()), "{names:?}");
    assert_eq!(browser.text("#state-text"), "live");
    assert_eq!(browser.text("#detail-name"), "uplink");
    until("a line in each chart", || {
        let drawn = "[...document.querySelectorAll('.chart .line1')]
            .filter((line) => (line.getAttribute('d') || '').includes('L')).length";
        (browser.evaluate(drawn) == 3).then_some(())
    });
    assert!(browser.texts("#drops tbody td:first-child").contains(&"congested".to_owned()));
    browser.evaluate("document.querySelector('#rows [data-id=\"uplink/0/1:10\"]').click()");
    assert_eq!(browser.text("#detail-name"), "class 1:10 on uplink");
    let facts = browser.texts("#facts dd");
    let share = ["tenant-a, weight 3", "10.0 Mbit/s", "8.00 Mbit/s", "20.0 Mbit/s", "1.00 Mbit/s"];
    assert!(facts.windows(5).any(|five| five == share), "{facts:?}");
    assert_eq!(facts.last().map(String::as_str), Some("answered 40.0 ms ago"));
    // If the daemon was started without --web-control, the page has no command line.
    assert_eq!(browser.evaluate("document.getElementById('command').hidden"), true);
    assert_eq!(browser.complaints(), [] as [String; 0]);
}

#[test]
fn keys_filter_and_order() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start(MadeUp { many: 10_000, ..MadeUp::default() }, false);
    open(&mut browser, &server);
    let rows = |browser: &mut Browser| browser.texts("#rows .name").len();
    assert!(browser.text("#omitted").starts_with("19,"), "{}", browser.text("#omitted"));
    let before = rows(&mut browser);
    assert!((100..400).contains(&before), "{before}");
    browser.evaluate("document.querySelector('#rows tr').focus()");
    for key in ["ArrowDown", "ArrowDown", "ArrowLeft"] {
        browser.press(key);
    }
    assert_eq!(browser.text("#detail-name"), "class 1:1 on uplink");
    until("the class to close", || (rows(&mut browser) == before - 6).then_some(()));
    browser.press("/");
    browser.type_text("queue 7777 fq");
    until("one queue of ten thousand", || {
        let names = browser.texts("#rows .name");
        (names == ["wide0dummy10,000 queues", "queue 7777", "fq9e62:"]).then_some(())
    });
    browser.press("Escape");
    browser.evaluate(
        "const sort = document.getElementById('sort'); sort.value = 'rate';
         sort.dispatchEvent(new Event('change'))",
    );
    until("the fastest first", || {
        browser.texts("#rows .name").first().filter(|name| name.starts_with("wide0")).map(drop)
    });
    assert_eq!(browser.complaints(), [] as [String; 0]);
}

#[test]
fn commands_have_their_replies() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start(MadeUp::default(), true);
    open(&mut browser, &server);
    browser.evaluate("document.getElementById('line').focus()");
    browser.type_text("tc qdisc 'a b'");
    browser.press("Enter");
    until("a reply", || (browser.text("#reply").contains("tc qdisc a b\n")).then_some(()));
    browser.type_text("rm -rf");
    browser.press("Enter");
    until("a refusal", || (browser.text("#reply").contains("exit status 1")).then_some(()));
    assert_eq!(browser.complaints(), [] as [String; 0]);
}

#[test]
fn a_daemon_that_goes_and_comes_and_one_without_devices() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start(MadeUp { empty: true, ..MadeUp::default() }, false);
    browser.open(&format!("http://{}/", server.address));
    until("advice", || {
        let hidden = browser.evaluate("document.getElementById('empty')?.hidden");
        (hidden == false).then_some(())
    });
    assert!(browser.text("#empty").contains("onramp tc qdisc replace dev d0 root fq"));
    let server = {
        drop(server);
        Server::start(MadeUp::default(), false)
    };
    open(&mut browser, &server);
    drop(server);
    until("the news", || {
        let told = browser.text("#gone").contains("has not answered");
        (told && browser.text("#state-text") == "no answer").then_some(())
    });
}

/// In light and dark colours and at both widths, each screenshot shows content, and nothing exceeds
/// the window's width.
#[test]
fn pictures() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start(MadeUp::default(), true);
    let mut papers = HashSet::new();
    for (scheme, width) in [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)] {
        browser.look(scheme, width, 900);
        open(&mut browser, &server);
        let over = browser.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth",
        );
        assert_eq!(over, 0, "{scheme} {width}: it sticks out to the right");
        let picture = browser.picture(&format!("{scheme}-{width}"));
        assert_eq!(picture.size(), (width, 900));
        papers.insert((scheme, picture.corner()));
        let colours = picture.colours();
        assert!(colours > 50, "{scheme} {width}: {colours} colours");
        let bare = picture.share_of_corner();
        assert!((0.3..0.98).contains(&bare), "{scheme} {width}: {bare} is bare");
    }
    assert_eq!(papers.len(), 2, "a paper for light and one for dark: {papers:?}");
}

/// Names as long as names can be are neither cut nor drawn over the figures beside them.
#[test]
fn long_names_are_whole() {
    let Some(mut browser) = browser() else { return };
    let server = Server::start(MadeUp { long: true, ..MadeUp::default() }, true);
    for width in [400, 1000, 1100, 1280, 1920] {
        browser.look("light", width, 900);
        open(&mut browser, &server);
        browser.picture(&format!("long-{width}"));
        let names = browser.texts("#rows .name");
        for name in ["uplink-to-berl0loopbackdown", "classffff:d003fleet", "pfifo_head_drop8001:"] {
            assert!(names.contains(&name.to_owned()), "{width}: {names:?}");
        }
        assert!(browser.text("#about").starts_with("What leaves through each network device"));
        let cut = browser.evaluate(
            "[...document.querySelectorAll('#tree th, #tree td, #detail *')].filter((one) => {
                const box = one.getBoundingClientRect();
                const out = [...one.children].some((child) =>
                    child.getBoundingClientRect().right > box.right + 1);
                return one.clientWidth > 0 && (out || one.scrollWidth > one.clientWidth + 1);
            }).map((one) => one.textContent).join('; ')",
        );
        assert_eq!(cut, "", "{width}: cut, or drawn over what is beside it");
        let over = browser.evaluate("document.documentElement.scrollWidth - innerWidth");
        assert_eq!(over, 0, "{width}: it sticks out to the right");
    }
}
