class EngineCoreOutputs:
    def __init__(self) -> None: ...

class EngineCoreRequestType:
    UTILITY: EngineCoreRequestType
