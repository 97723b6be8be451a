//! Tests of `onramp completions` in each shell that it supports.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{run, skip, stderr};

/// A shell, with a script that makes the shell complete a command line.
struct Shell {
    name: &'static str,
    /// The script. It loads the completion script, whose path is in `$SCRIPT`, and prints the words
    /// that may come next on the command line in `$LINE`.
    asks: &'static str,
}

const BASH: Shell = Shell {
    name: "bash",
    asks: r#"
        source "$SCRIPT"
        COMP_LINE=$LINE COMP_POINT=${#LINE}
        read -ra COMP_WORDS <<<"$LINE"
        [[ $LINE == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        called=${COMP_WORDS[0]}
        asks=$(complete -p "$called" | sed 's/.* -F \([^ ]*\) .*/\1/')
        "$asks" "$called" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#,
};

const ZSH: Shell = Shell {
    name: "zsh",
    asks: r#"
        compdef() { asks=$1; }
        compadd() { print -rl -- "${(P@)@[-1]}"; }
        source "$SCRIPT"
        words=("${(@s: :)LINE}")
        CURRENT=$#words
        "$asks"
    "#,
};

const FISH: Shell = Shell {
    name: "fish",
    asks: "source $SCRIPT; complete -C $LINE | string replace -r '\\t.*' ''",
};

impl Shell {
    /// Returns the words that the shell offers as the next word of `line`; `None` if the shell is
    /// not installed.
    fn next(&self, line: &str) -> Option<Vec<String>> {
        let folder = tempfile::tempdir().expect("a folder");
        let written = run(&format!("completions {} --also tc", self.name));
        assert!(written.status.success(), "{}", stderr(&written));
        let script = folder.path().join("script");
        fs::write(&script, written.stdout).expect("it can be written");
        let program = Path::new(env!("CARGO_BIN_EXE_onramp"));
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", program.parent().expect("a folder").display());
        let output = Command::new(self.name)
            .args(["-c", self.asks])
            .env("PATH", path)
            .env("HOME", folder.path())
            .env("ONRAMP_SOCKET", folder.path().join("none"))
            .env("SCRIPT", &script)
            .env("LINE", line)
            .stdin(Stdio::null())
            .output();
        let Ok(output) = output else {
            skip(&format!("completion: there is no {}", self.name));
            return None;
        };
        assert!(stderr(&output).is_empty(), "{line}: {}", stderr(&output));
        let said = String::from_utf8(output.stdout).expect("words");
        let mut words: Vec<String> =
            said.split_whitespace().map(str::to_owned).filter(|word| !word.is_empty()).collect();
        words.sort();
        Some(words)
    }

    fn check(&self) {
        for (line, next) in [
            ("onramp tc qdisc add dev d0 root fq_", "fq_codel fq_pie"),
            ("onramp tc cl", "class"),
            ("onramp ip link add u0 type udp ", "clients idle listen local peer remote"),
            ("tc qdisc add dev d0 root bfifo ", "help limit"),
            ("tc qdisc add dev d0 root fq limit ", ""),
        ] {
            let Some(found) = self.next(line) else { return };
            assert_eq!(found.join(" "), next, "{}: {line}", self.name);
        }
    }
}

#[test]
fn bash_completes() {
    BASH.check();
    // Words before `tc`, such as the names of commands, are completed by the part of the script
    // that clap generates.
    let found = BASH.next("onramp compl").unwrap_or_default();
    assert_eq!(found, ["completions"]);
}

#[test]
fn zsh_completes() {
    ZSH.check();
}

#[test]
fn fish_completes() {
    FISH.check();
}

#[test]
fn what_completes_says_what_it_means() {
    let output = run("complete tc qdisc add dev d0 root plu");
    let said = String::from_utf8(output.stdout).expect("words");
    assert_eq!(said.lines().count(), 1, "{said}");
    let (word, help) = said.trim_end().split_once('\t').expect("two fields");
    assert!(word == "plug" && help.contains("packets"), "{said}");
}

#[test]
fn manual_pages_are_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(&format!("man {}/new", folder.path().display()));
    assert!(output.status.success(), "{}", stderr(&output));
    for name in ["onramp.1", "onramp-daemon.8", "onramp-ip.8", "onramp-tc.8"] {
        let page = fs::read_to_string(folder.path().join("new").join(name)).expect("a page");
        assert!(page.starts_with(".TH onramp") && page.contains("SEE ALSO"), "{name}");
    }
}
