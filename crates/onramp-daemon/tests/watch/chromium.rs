//! A headless Chromium, controlled over a pipe.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

/// Command-line flags that make the browser independent of the machine's settings and of the
/// network.
const FLAGS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
];

/// A browser with one page, which runs until this value is dropped.
pub(crate) struct Browser {
    running: Child,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
    session: Option<String>,
    id: u64,
    complaints: Vec<String>,
    folder: tempfile::TempDir,
}

impl Drop for Browser {
    /// Ends all processes of the browser. Only then can the folder be removed, because each of them
    /// makes files in it.
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.running), Signal::KILL);
        let _ = self.running.wait();
        for _ in 0..100 {
            if fs::remove_dir_all(self.folder.path()).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Browser {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        // Chromium reads commands from file descriptor 3 and writes replies to file descriptor 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh", "chromium"])
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .env("TMPDIR", folder.path())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs");
        let commands = child.stdin.take().expect("it is piped");
        let replies = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut browser = Self {
            running: child,
            commands,
            replies,
            session: None,
            id: 0,
            complaints: Vec::new(),
            folder,
        };
        let page = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": page["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        browser.look("light", 1280, 900);
        browser
    }

    /// Sends a command to the browser, and returns its result.
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.id += 1;
        let mut message = json!({"id": self.id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).expect("it listens");
        loop {
            let mut reply = Vec::new();
            self.replies.read_until(0, &mut reply).expect("it answers");
            assert_eq!(reply.pop(), Some(0), "Chromium has ended");
            let reply: Value = serde_json::from_slice(&reply).expect("JSON");
            if reply["id"] == self.id {
                assert!(reply["error"].is_null(), "{method}: {reply}");
                return reply["result"].clone();
            }
            let complains = match reply["method"].as_str().unwrap_or_default() {
                "Runtime.exceptionThrown" => true,
                "Log.entryAdded" => reply["params"]["entry"]["level"] == "error",
                "Runtime.consoleAPICalled" => reply["params"]["type"] == "error",
                _ => false,
            };
            if complains {
                self.complaints.push(reply["params"].to_string());
            }
        }
    }

    /// Returns the errors (of scripts, for example) that the page has reported so far.
    pub(crate) fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// Sets the preferred colour scheme and the size of the window.
    pub(crate) fn look(&mut self, scheme: &str, width: u32, height: u32) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1,
            "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    pub(crate) fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", json!({"url": url}));
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
    }

    /// Evaluates an expression in the page, and returns its value.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", asked);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Returns the text of each element that matches `selector`.
    pub(crate) fn texts(&mut self, selector: &str) -> Vec<String> {
        let all = format!(
            "[...document.querySelectorAll({})].map((one) => one.textContent)",
            json!(selector)
        );
        serde_json::from_value(self.evaluate(&all)).expect("texts")
    }

    /// Returns the text of the first element that matches `selector`.
    pub(crate) fn text(&mut self, selector: &str) -> String {
        self.texts(selector).into_iter().next().unwrap_or_default()
    }

    pub(crate) fn press(&mut self, key: &str) {
        let text = match key {
            "Enter" => "\r",
            key if key.chars().count() == 1 => key,
            _ => "",
        };
        let mut event = json!({"type": "keyDown", "key": key});
        if !text.is_empty() {
            event["text"] = text.into();
        }
        self.call("Input.dispatchKeyEvent", event);
        self.call("Input.dispatchKeyEvent", json!({"type": "keyUp", "key": key}));
    }

    pub(crate) fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Takes a screenshot of the window. If `$ONRAMP_PICTURES` names a directory, the screenshot is
    /// also saved there.
    pub(crate) fn picture(&mut self, name: &str) -> Picture {
        let shot = self.call("Page.captureScreenshot", json!({"format": "png"}));
        let data = shot["data"].as_str().expect("a picture");
        let bytes = base64::engine::general_purpose::STANDARD.decode(data).expect("base 64");
        if let Some(folder) = std::env::var_os("ONRAMP_PICTURES") {
            let path = std::path::Path::new(&folder).join(name).with_extension("png");
            fs::write(path, &bytes).expect("it can be written");
        }
        Picture::read(&bytes)
    }
}

/// A picture as an array of pixels.
pub(crate) struct Picture {
    width: u32,
    height: u32,
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    fn read(bytes: &[u8]) -> Self {
        let mut decoder = png::Decoder::new(std::io::Cursor::new(bytes));
        decoder.set_transformations(png::Transformations::normalize_to_color8());
        let mut reader = decoder.read_info().expect("a picture");
        let mut data = vec![0; reader.output_buffer_size().expect("it fits")];
        let info = reader.next_frame(&mut data).expect("a picture");
        let step = info.color_type.samples();
        let pixels = data.chunks_exact(step).map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect();
        Self { width: info.width, height: info.height, pixels }
    }

    pub(crate) fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    /// Returns the background colour: the colour of the first pixel.
    pub(crate) fn corner(&self) -> [u8; 3] {
        self.pixels[0]
    }

    pub(crate) fn colours(&self) -> usize {
        let mut seen = HashMap::new();
        for pixel in &self.pixels {
            *seen.entry(pixel).or_insert(0) += 1;
        }
        seen.len()
    }

    /// Returns the share of pixels that have the background colour.
    pub(crate) fn share_of_corner(&self) -> f64 {
        let bare = self.pixels.iter().filter(|pixel| **pixel == self.corner()).count();
        bare as f64 / self.pixels.len() as f64
    }
}
