"""What exists: models, devices and their YAML files. A spec states shapes and sources, never a size in bytes.

Import the module you need (`kvplan.specs.load`, `.model`, `.device`, `.find`): this package re-exports nothing, so that
finding the data folder does not pull in pydantic or yaml.
"""
