from orchestration.models.workflow_request import WorkflowRequest

__all__ = ["WorkflowRequest"]
