from typing import final

@final
class Pack: ...
