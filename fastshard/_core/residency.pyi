from typing import final

from fastshard._core.mapped import MappedFile

@final
class Descriptor:
    def __new__(cls) -> Descriptor: ...

@final
class Residency:
    def __new__(
        cls, file: MappedFile, device: int, inode: int, owner: int, *, fd: int = -1
    ) -> Residency: ...
    def handle(self, file: MappedFile) -> Residency: ...
    def look(self, fd: int) -> None: ...
