from typing_extensions import Buffer

CAN_RECEIVE: bool

def receive_into(fd: int, view: Buffer, until: int) -> tuple[int, bool]: ...
