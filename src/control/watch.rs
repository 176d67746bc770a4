//! Looks at what backs the block devices, from a thread of its own, since a file system that hangs
//! hangs whoever asks it. What it finds goes to the log, and to the owner of the model as an
//! [`Event`].

use std::collections::HashMap;
use std::sync::mpsc;
use std::time::Duration;

use bdev::registry::{Registered, Registry};
use uuid::Uuid;

use super::server::Event;

/// How often files are looked at.
const EVERY: Duration = Duration::from_secs(1);

/// The thread that watches; ends with this value, unless a file system holds it.
#[derive(Debug)]
pub struct Watch {
    _stop: mpsc::Sender<()>,
}

impl Watch {
    /// Watches the devices of `registry`; changes arrive at `events`.
    pub fn start(registry: Registry, events: mpsc::Sender<Event>) -> std::io::Result<Watch> {
        let (stop, stopped) = mpsc::channel();
        let watch = move || {
            let mut known = Known::default();
            while stopped.recv_timeout(EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                if known.look(&registry.list()) && events.send(Event::Changed).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("watch".to_owned()).spawn(watch)?;
        Ok(Watch { _stop: stop })
    }
}

/// The generations of devices when they were last seen.
#[derive(Default)]
struct Known(HashMap<Uuid, u64>);

impl Known {
    /// Looks at all devices; whether one that was known is another than it was.
    fn look(&mut self, devices: &[Registered]) -> bool {
        // All first: what lies over a device shows that one's generation.
        for there in devices {
            there.device.check_backing();
        }
        let now: HashMap<Uuid, u64> =
            devices.iter().map(|there| (there.device.uuid(), there.device.generation())).collect();
        let before = std::mem::replace(&mut self.0, now);
        self.0.iter().any(|(uuid, generation)| match before.get(uuid) {
            Some(known) => known != generation,
            // It may have changed before it was looked at for the first time.
            None => *generation > 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::sync::Arc;

    use bdev::Bdev;
    use bdev::delay::{DelayBdev, Hold};
    use bdev::uring::{UringBdev, UringOptions};

    use super::*;

    #[test]
    fn a_truncated_file_is_noticed_once_below_a_wrapper_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let registry = Registry::new();
        let file: Arc<dyn Bdev> = Arc::new(UringBdev::open("z", &path, &UringOptions::default()).unwrap());
        let over: Arc<dyn Bdev> = Arc::new(DelayBdev::new("a", Arc::clone(&file), Hold::After));
        registry.add(file).unwrap();
        registry.add(Arc::clone(&over)).unwrap();
        let mut known = Known::default();
        assert!(!known.look(&registry.list()));
        assert!(!known.look(&registry.list()));
        OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        assert!(known.look(&registry.list()));
        assert_eq!(over.generation(), 1);
        assert!(!known.look(&registry.list()), "once");
    }
}
