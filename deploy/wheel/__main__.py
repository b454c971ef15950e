from workflow_catalogue import main

main()
