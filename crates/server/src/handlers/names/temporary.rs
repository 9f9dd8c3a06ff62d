//! MakeTemporary: a file without a name, which its session has open. It goes with its last close, unless LinkOpen
//! (`rename`) gives it a name before.

use crate::core::{Caller, Core, Failure};
use crate::files::inodes::Inode;
use crate::files::rights::inherit_group;
use crate::handlers::{Progress, check_directory};
use crate::journal::records::Record;
use std::rc::Rc;
use wire::messages::{MakeTemporaryRequest, OpenReply};
use wire::{Decode, Encode, Kind, Status};

pub fn make_temporary(
    core: &Rc<Core>,
    caller: &Caller,
    params: &[u8],
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let request = MakeTemporaryRequest::from_bytes(params)?;
    if request.slot >= core.cluster.slot_count || !core.owns_slot(request.slot) {
        return Err(Status::WrongServer.into());
    }
    core.check_wish(&request.layout)?;
    {
        let tables = core.tables.borrow();
        tables.check_not_removed(std::iter::once(request.directory))?;
        check_directory(core, &tables, request.directory)?;
    }
    let file = core.next_file(request.slot)?;
    let open_number = core.open_number(caller, &[file])?;
    let mut attributes = core.new_attributes(file, Kind::File, request.mode, caller, &request.layout);
    attributes.link_count = 0;
    inherit_group(&mut attributes, request.group, caller.credentials());
    OpenReply { attributes: attributes.clone(), created: true, open_number, places: None, contents: None }
        .encode(reply);
    let linkable = if request.linkable { Record::LinkablePut(file) } else { Record::Nothing };
    core.register_open(caller.peer.session, file, open_number);
    let made = core.change([Record::InodePut(Inode::new(attributes)), linkable, caller.outcome(reply)]);
    if made.is_err() {
        core.closed(caller.peer.session, file, open_number);
    }
    made.map(|()| Progress::Done)
}
