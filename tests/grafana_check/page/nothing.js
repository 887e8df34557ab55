// Stands for Grafana's assistant, which no panel needs.
export const QueryWithAssistantButton = () => null;
