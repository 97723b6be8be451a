//! Numbers in a file that two processes see.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::AtomicU64;

use libc::c_int;

/// Numbers in a file, which stay in memory until the process ends. Another process that reads the
/// file finds what was written, also if this process was killed.
///
/// The file is as long as all the numbers, but takes room only for those for which
/// [`make_room`](Self::make_room) has made some. It does so through the memory: the program may
/// have closed the file, or have lost the right to open it again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedWords {
    words: &'static [AtomicU64],
    /// What asks the kernel (madvise(2)) for the room of a part of the memory; `None` if all
    /// numbers have theirs.
    advice: Option<c_int>,
}

impl SharedWords {
    /// Maps `count` numbers in an empty file into memory, and makes room for the first ones.
    ///
    /// A kernel before Linux 5.14 cannot make room for a part later: then all numbers get theirs.
    ///
    /// # Errors
    ///
    /// `StorageFull` if there is no room; `FileTooLarge` if the limit on the size of files is
    /// smaller (the kernel would send SIGXFSZ to a process that goes beyond it); or another error
    /// of the kernel.
    pub(crate) fn new(file: &File, count: usize, first: usize) -> io::Result<Self> {
        Self::with(file, count, first, libc::MADV_POPULATE_WRITE)
    }

    fn with(file: &File, count: usize, first: usize, advice: c_int) -> io::Result<Self> {
        let bytes = count * size_of::<AtomicU64>();
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel writes to a live `rlimit`.
        let asked = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
        if asked == 0 && limit.rlim_cur < bytes as u64 {
            let (limit, needed) = (limit.rlim_cur / 1_024, bytes.div_ceil(1_024));
            let text = format!(
                "the limit on the size of files (ulimit -f) is {limit} KiB, and the file needs \
                 {needed} KiB ({} MiB); raise the limit",
                needed / 1_024
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        file.set_len(bytes as u64)?;
        // SAFETY: the kernel chooses a place where nothing is mapped.
        let place = unsafe { libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0) };
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping begins at a page, has `bytes` bytes, of which each pattern is a
        // number, and is never removed. All its users are atomic.
        let words = unsafe { std::slice::from_raw_parts(place.cast(), count) };
        let shared = Self { words, advice: Some(advice) };
        match shared.make_room(0..first) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                reserve(file, bytes)?;
                Ok(Self { words, advice: None })
            }
            made => made.map(|()| shared),
        }
    }

    /// Returns the numbers. A write to one without room may end the process (SIGBUS).
    pub(crate) fn words(&self) -> &'static [AtomicU64] {
        self.words
    }

    /// Makes room for a part of the numbers, as for all in the same pages of memory.
    ///
    /// # Errors
    ///
    /// `StorageFull` if there is no room, or another error of the kernel.
    ///
    /// # Panics
    ///
    /// Panics if there are not as many numbers.
    pub(crate) fn make_room(&self, part: Range<usize>) -> io::Result<()> {
        let Some(advice) = self.advice else { return Ok(()) };
        let part = &self.words[part];
        // SAFETY: the call takes a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(1);
        let before = part.as_ptr().addr() % page;
        let start = part.as_ptr().wrapping_byte_sub(before).cast_mut().cast();
        // SAFETY: the pages are a part of the mapping, which begins at a page. The kernel changes
        // no number in them: it does what a write would do, except that it returns an error where
        // the write would end the process.
        match unsafe { libc::madvise(start, before + size_of_val(part), advice) } {
            0 => Ok(()),
            _ => Err(match io::Error::last_os_error() {
                // It stands for the signal.
                error if error.raw_os_error() == Some(libc::EFAULT) => {
                    io::ErrorKind::StorageFull.into()
                }
                error => error,
            }),
        }
    }
}

/// Makes room for the whole file.
fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    let len = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: the call takes numbers.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    /// A kernel that does not know the advice gives all numbers their room at the beginning.
    #[test]
    fn an_old_kernel_makes_room_for_all() {
        const COUNT: usize = 50_000;
        let path = std::env::temp_dir().join(format!("onramp-shared-{}", std::process::id()));
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(&path).expect("a new file");
        fs::remove_file(&path).expect("it is there");
        let shared = SharedWords::with(&file, COUNT, 8, 1_000_000).expect("room");
        assert_eq!(shared.advice, None);
        let about = file.metadata().expect("it is open");
        assert!(about.blocks() * 512 >= COUNT as u64 * 8, "{} blocks", about.blocks());
        shared.make_room(COUNT - 1..COUNT).expect("it is there");
        shared.words()[COUNT - 1].store(7, Relaxed); // Relaxed: nobody else sees it.
    }
}
