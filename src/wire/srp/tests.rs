//! Tests of the SRP wire formats.
