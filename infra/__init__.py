"""The AWS CDK app of a deployment: ``python -m infra.app``, or ``cdk synth -c stage=dev``."""
