"""Who runs next, and where its keys and values live: scheduler, KV blocks, and the engine-core actor.

`config.SchedulerConfig` and `engine_core.EngineCore` are what the frontend starts; `messages` is what all
sides share. Nothing here imports torch. This file imports nothing, so that a worker which needs `messages`
loads only that.
"""
