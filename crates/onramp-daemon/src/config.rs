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
        Ok(Err((line, reply))) => {
            let said = reply.err.trim_end().replace('\n', ": ");
            Err(format!("{name}:{line}: {said}"))
        }
        Err(died) => Err(format!("{name}: {died}")),
    }
}
