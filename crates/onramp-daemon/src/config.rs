//! The configuration: a file of commands that the host applies as a whole. If one of the commands
//! cannot be carried out, the host stays unchanged, except for devices that cannot be restored.

use std::path::Path;

use onramp_host::{ConfigureError, read_file};
use tokio::task::spawn_blocking;

use crate::hub::Hub;

/// Largest size of the configuration file, in bytes.
const FILE_MAX: u64 = 16 << 20;

/// Error: why the host could not be configured as a file says.
#[derive(Debug)]
pub(crate) struct Unloaded {
    /// What is wrong, with the name of the file and the line, and which devices are lost.
    pub(crate) why: String,
    /// Whether the host is as it was before.
    pub(crate) is_as_before: bool,
}

/// Configures the host as the file says. Returns the commands that were needed for that.
///
/// # Errors
///
/// Returns what is wrong, and whether the host is as it was.
pub(crate) async fn load(hub: &Hub, file: &Path) -> Result<Vec<String>, Unloaded> {
    let name = file.display();
    let unread = |why: &dyn std::fmt::Display| Unloaded {
        why: format!("cannot read {name}: {why}"),
        is_as_before: true,
    };
    let path = file.to_path_buf();
    let bytes = spawn_blocking(move || read_file(&path, FILE_MAX)).await;
    let bytes = bytes.map_err(|died| unread(&died))?.map_err(|error| unread(&error))?;
    let text = String::from_utf8(bytes).map_err(|error| unread(&error))?;
    let folder = file.parent().map_or_else(Default::default, Path::to_path_buf);
    let done = hub.with(move |host| host.configure(&text, &folder)).await;
    match done {
        Ok(Ok(commands)) => Ok(commands),
        Ok(Err(failed)) => Err(Unloaded {
            why: format!("{name}:{}: {}{}", failed.line, joined(&failed.reply.err), lost(&failed)),
            is_as_before: failed.lost.is_empty(),
        }),
        Err(died) => Err(Unloaded { why: format!("{name}: {died}"), is_as_before: false }),
    }
}

/// Says which devices could not be restored, behind another text.
fn lost(failed: &ConfigureError) -> String {
    let each = failed.lost.iter();
    each.map(|(device, reply)| format!("; {device} could not be restored: {}", joined(&reply.err)))
        .collect()
}

/// Joins the lines of an error text to one line: each says more exactly what the one before says.
fn joined(text: &str) -> String {
    let lines = text.lines().map(|line| line.strip_suffix('.').unwrap_or(line));
    lines.collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_an_error_are_one_sentence() {
        let text = "Error: Unknown device type.\nlink: \"dumy\": expected dummy or veth\n";
        assert_eq!(
            joined(text),
            "Error: Unknown device type: link: \"dumy\": expected dummy or veth"
        );
        assert_eq!(joined("RTNETLINK answers: File exists\n"), "RTNETLINK answers: File exists");
    }
}
