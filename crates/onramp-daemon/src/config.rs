//! The configuration: a file of commands, which the host follows, all or nothing.

use std::path::Path;

use onramp_host::read_file;
use tokio::task::spawn_blocking;

use crate::hub::Hub;

/// Bytes of the file, at most.
const FILE_MAX: u64 = 16 << 20;

/// Brings the host to what the file says. Gives the steps that it took.
///
/// # Errors
///
/// What is wrong, with the file and the line. Nothing has changed.
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
        Ok(Err((line, reply))) => {
            let said = reply.err.trim_end().replace('\n', ": ");
            Err(format!("{name}:{line}: {said}"))
        }
        Err(died) => Err(format!("{name}: {died}")),
    }
}
