// This source owns the precompiled headers of all rooms.
