"""Load of every kind at the same time: claims, device-plugin pods, ResourceClaims and Jobs of Kueue."""
