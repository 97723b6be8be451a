//! The configuration: a file of commands that the host applies as a whole. If one of the commands
//! cannot be carried out, the host stays unchanged.

use std::path::Path;

use onramp_host::read_file;
use tokio::task::spawn_blocking;

use crate::hub::Hub;

/// Largest size of the configuration file, in bytes.
const FILE_MAX: u64 = 16 << 20;

/// Configures the host as the file says. Returns the commands that were needed for that.
///
/// # Errors
///
/// Returns what is wrong, with the name of the file and the line. In this case the host is
/// unchanged.
pub(crate) async fn load(hub: &Hub, file: &Path) -> Result<Vec<String>, String> {
    let name = file.display();
    let unread = |why: &dyn std::fmt::Display| format!("cannot read {name}: {why}");
    let path = file.to_path_buf();
    let bytes = spawn_blocking(move || read_file(&path, FILE_MAX)).await;
    let bytes = bytes.map_err(|died| unread(&died))?.map_err(|error| unread(&error))?;
    let text = String::from_utf8(bytes).map_err(|error| unread(&error))?;
    let folder = file.parent().map_or_else(Default::default, Path::to_path_buf);
    let done = hub.with(move |host| host.configure(&text, &folder)).await;
    match done {
        Ok(Ok(commands)) => Ok(commands),
        Ok(Err((line, reply))) => Err(format!("{name}:{line}: {}", joined(&reply.err))),
        Err(died) => Err(format!("{name}: {died}")),
    }
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
