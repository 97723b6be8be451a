//! The requests that the client sends to a daemon, and how it handles the answers.

use std::os::unix::net::UnixListener;

use onramp_daemon::client::{Batch, Client, ClientError};
use onramp_host::Reply;

use super::*;

/// A simulated daemon: it answers each request with the next of some prepared answers, whatever the
/// request is. After the last answer, its thread returns the requests that it received.
struct Scripted {
    folder: tempfile::TempDir,
    thread: JoinHandle<Vec<Value>>,
}

impl Scripted {
    fn start(answers: &[&str]) -> (Client, Self) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("it binds");
        let answers: Vec<String> = answers.iter().map(|answer| (*answer).to_owned()).collect();
        let serve = move || {
            let (stream, _) = listener.accept().expect("somebody comes");
            let mut client = Conversation(BufReader::new(stream));
            let mut heard = Vec::new();
            for answer in answers {
                heard.push(client.read());
                client.write(answer.as_bytes());
            }
            heard
        };
        let thread = std::thread::Builder::new().spawn(serve).expect("a thread");
        (Client::connect(&path).expect("it listens"), Self { folder, thread })
    }

    fn heard(self) -> Vec<Value> {
        let heard = self.thread.join().expect("it has its answers");
        drop(self.folder);
        heard
    }
}

#[test]
fn requests_are_numbered_and_replies_are_whole() {
    let (mut client, daemon) = Scripted::start(&[
        "{\"v\":1,\"id\":1,\"code\":2,\"out\":\"o\\n\",\"err\":\"e\\n\"}\n",
        "{\"v\":1,\"id\":2,\"code\":1,\"tried\":3,\"said\":[\
         {\"command\":1,\"code\":255,\"out\":\"a\",\"err\":\"b\"},\
         {\"command\":2,\"code\":0,\"out\":\"c\",\"err\":\"\"}]}\n",
        "{\"v\":1,\"id\":null,\"code\":0}\n",
    ]);
    let reply = client.exec(&["tc", "qdisc"], "/a").expect("it answers");
    assert_eq!(reply, Reply { code: 2, out: "o\n".into(), err: "e\n".into() });
    let commands = [vec!["tc".to_owned()], vec!["ip".to_owned(), "link".to_owned()]];
    let Batch { tried, said } = client.batch(&commands, "/b", true).expect("it answers");
    let expected = vec![
        (1, Reply { code: 255, out: "a".into(), err: "b".into() }),
        (2, Reply { code: 0, out: "c".into(), err: String::new() }),
    ];
    assert_eq!((tried, said), (3, expected));
    assert_eq!(client.exec(&["ip"], "/").expect("it answers"), Reply::default());
    let expected = [
        json!({"v": 1, "id": 1, "argv": ["tc", "qdisc"], "cwd": "/a"}),
        json!({"v": 1, "id": 2, "batch": [["tc"], ["ip", "link"]], "cwd": "/b", "force": true}),
        json!({"v": 1, "id": 3, "argv": ["ip"], "cwd": "/"}),
    ];
    assert_eq!(daemon.heard(), expected);
}

#[test]
fn strange_answers_are_told() {
    for (answer, told) in [
        ("{\"v\":1,\"id\":2,\"code\":0}\n", "{\"v\":1,\"id\":2,\"code\":0}"),
        ("{\"v\":2,\"id\":1,\"code\":0}\n", "{\"v\":2,\"id\":1,\"code\":0}"),
        ("what?\n", "expected value at line 1 column 1: what?"),
    ] {
        let (mut client, daemon) = Scripted::start(&[answer]);
        let error = client.exec(&["ip"], "/").expect_err(answer);
        assert!(matches!(error, ClientError::Strange(_)));
        assert_eq!(error.to_string(), format!("unexpected answer from the daemon: {told}"));
        daemon.heard();
    }
    // If the daemon refuses a batch, the client returns the daemon's reason, without the name of
    // the program, which the program itself puts in front of errors.
    for (answer, told) in [
        ("{\"v\":1,\"code\":2,\"err\":\"onramp: no\\n\"}\n", "no"),
        ("{\"v\":1,\"code\":0}\n", "unexpected answer from the daemon: it is not one to a batch"),
    ] {
        let (mut client, daemon) = Scripted::start(&[answer]);
        let error = client.batch(&[], "/", false).expect_err("it is refused");
        assert_eq!(error.to_string(), told);
        daemon.heard();
    }
}

#[test]
fn a_daemon_may_go_and_not_be_there() {
    let (mut client, daemon) = Scripted::start(&[]);
    daemon.heard();
    let error = client.exec(&["ip"], "/").expect_err("it is gone");
    assert!(matches!(error, ClientError::Lost(_)), "{error}");
    assert!(error.to_string().starts_with("the daemon does not answer: "), "{error}");
    let absent = Client::connect("/nonexistent/socket".as_ref()).expect_err("there is none");
    let told = "no daemon runs at /nonexistent/socket: start one with `onramp daemon`, or say \
                where it is: ONRAMP_SOCKET=PATH";
    assert_eq!(absent.to_string(), told);
    let error =
        |kind: std::io::ErrorKind| ClientError::Absent("/s".into(), kind.into()).to_string();
    let denied = error(std::io::ErrorKind::PermissionDenied);
    assert!(denied.starts_with("this user may not use the daemon at /s: "), "{denied}");
    assert!(denied.contains("`onramp daemon --socket PATH`"), "{denied}");
    let ended = error(std::io::ErrorKind::ConnectionRefused);
    assert!(ended.starts_with("the daemon at /s has ended: start one with "), "{ended}");
    // Where there is no socket, no daemon has ever been.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("a file");
    for path in [folder.path(), &file] {
        let told = Client::connect(path).expect_err("it is no socket").to_string();
        let start = format!("{} is not a socket, so no daemon is there: start", path.display());
        assert!(told.starts_with(&start), "{told}");
    }
}
