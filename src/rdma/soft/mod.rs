//! Floor 3: the soft provider: the engine on UDP port 4791.
