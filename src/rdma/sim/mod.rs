//! Floor 3: a seeded simulated network below the engine, and a scripted verbs device.
