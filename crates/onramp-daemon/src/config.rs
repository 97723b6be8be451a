//! The configuration: a file of commands, which the host follows, all or nothing.

use std::fs;
use std::path::Path;

use crate::hub::Hub;

/// Brings the host to what the file says. Gives the commands that it took.
///
/// # Errors
///
/// What is wrong, with the file and the line. Nothing has changed.
pub(crate) async fn load(hub: &Hub, file: &Path) -> Result<Vec<String>, String> {
    let name = file.display();
    let text = fs::read_to_string(file).map_err(|error| format!("cannot read {name}: {error}"))?;
    let folder = file.parent().map_or_else(Default::default, Path::to_path_buf);
    let done = hub.with(move |host| host.configure(&text, &folder)).await;
    match done {
        Ok(Ok(commands)) => Ok(commands),
        Ok(Err((line, reply))) => {
            let said = reply.err.trim_end().replace('\n', ": ");
            Err(format!("{name}:{line}: {said}"))
        }
        Err(died) => Err(format!("{name}: {died}")),
    }
}
