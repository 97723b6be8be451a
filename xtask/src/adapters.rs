//! Uses the adapter crates as a stranger does: a new program, outside of the workspace, adds a
//! crate as the crate's README says, and contains the README's examples.
//!
//! Dependencies are resolved anew, so this also finds out whether the newest versions that the
//! crates allow still work. It needs the network, and minutes for the first build.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::shell::{root, run as shell};
use crate::{Failure, Outcome};

const ADAPTERS: [&str; 4] = ["onramp-limiter", "onramp-smoltcp", "onramp-tokio", "onramp-quinn"];

/// Builds and runs the examples of all adapters, or of those whose names are given.
pub(crate) fn run(args: &[String]) -> Outcome {
    if let Some(other) = args.iter().find(|arg| !ADAPTERS.contains(&arg.as_str())) {
        let all = ADAPTERS.join("|");
        return Err(Failure::Failed(format!("{other}: usage: cargo xtask adapters [{all}]...")));
    }
    for name in ADAPTERS {
        if args.is_empty() || args.iter().any(|arg| arg == name) {
            adapter(name)?;
        }
    }
    Ok(())
}

fn adapter(name: &str) -> Outcome {
    let failed = |what: &str| Failure::Failed(format!("crates/{name}/README.md: {what}"));
    let page = fs::read_to_string(root().join("crates").join(name).join("README.md"))
        .map_err(|error| failed(&error.to_string()))?;
    let folder = tempfile::tempdir().map_err(|error| Failure::Unable(error.to_string()))?;
    let program = folder.path().join("program");
    // The README's commands name a clone of the repository beside the program.
    symlink(root(), folder.path().join("onramp")).map_err(|error| failed(&error.to_string()))?;
    // `--vcs none`, because a folder for temporary files may be below a repository.
    shell(command("cargo", folder.path()).args(["new", "--quiet", "--vcs", "none", "program"]))?;
    let adds = blocks(&page, "sh");
    let adds = adds.first().ok_or_else(|| failed("no `sh` block says how to add the crate"))?;
    let mut bash = command("bash", &program);
    // Without the list of all features of each crate.
    shell(bash.args(["-euo", "pipefail", "-c", adds]).env("CARGO_TERM_QUIET", "true"))?;
    let examples = blocks(&page, "rust");
    if examples.is_empty() {
        return Err(failed("no example"));
    }
    for example in examples {
        // A stranger's first program has no warnings.
        fs::write(program.join("src/main.rs"), "#![deny(warnings)]\n".to_owned() + &example)
            .map_err(|error| failed(&error.to_string()))?;
        let mut cargo = command("cargo", &program);
        shell(
            cargo.args(["run", "--quiet"]).env("CARGO_TARGET_DIR", root().join("target/adapters")),
        )?;
    }
    Ok(())
}

/// Makes a command in a folder. It does not have the variables that the cargo that runs xtask has
/// set: they describe xtask's own package.
fn command(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PKG_") {
            command.env_remove(name);
        }
    }
    command.env_remove("CARGO_MANIFEST_DIR").current_dir(folder);
    command
}

/// Returns the blocks of a page that are in this language, without the `# ` at the start of lines
/// that the documentation does not show.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}");
    let mut lines = page.lines();
    let mut blocks = Vec::new();
    while lines.by_ref().any(|line| line == fence) {
        let block = lines.by_ref().take_while(|line| *line != "```");
        let shown = |line: &str| match line {
            "#" => "\n".to_owned(),
            _ => line.strip_prefix("# ").unwrap_or(line).to_owned() + "\n",
        };
        blocks.push(block.map(shown).collect());
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_of_one_language_with_their_hidden_lines() {
        let page = "# A\n\n```sh\ncargo add a\n```\n\n```text\nno\n```\n\n```rust\n# fn main() {\n\
            #[allow(unused)]\nlet a = 1;\n#\n# }\n```\n\n```rust\nb\n```\n";
        assert_eq!(blocks(page, "sh"), ["cargo add a\n"]);
        let first = "fn main() {\n#[allow(unused)]\nlet a = 1;\n\n}\n";
        assert_eq!(blocks(page, "rust"), [first, "b\n"]);
    }
}
