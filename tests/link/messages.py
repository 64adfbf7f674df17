"""Messages as a SuperLink names them."""

from flwr.app import Message, MessageType, RecordDict

from engram.wire.messages import local_run, name_message


def question(content=None, *, node=7, kind=MessageType.TRAIN, run_id=None, **metadata):
    """A message to a node; further keywords are entries of its metadata."""
    local_run()
    message = Message(content or RecordDict(), dst_node_id=node, message_type=kind)
    if run_id is not None:
        message.metadata.__dict__["_run_id"] = run_id
    for key, value in metadata.items():
        setattr(message.metadata, key, value)
    name_message(message, message.object_id)
    return message
